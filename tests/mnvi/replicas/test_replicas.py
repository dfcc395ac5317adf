"""Replicas: each ends as if trained alone in a plain loop."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import mnvi
from mnvi import replicas
from mnvi.replicas import step, training
from mnvi.replicas.recording import Recording

SEEDS = [5, 6, 7]
FEATURES = 4
RECIPE = replicas.Recipe(epochs=3, batch_size=16, learning_rate=0.05, momentum=0.9, milestones=(2,), clip=1.0)


def data(examples=(50, 51, 50)):
    generator = torch.Generator().manual_seed(1)
    sets = [torch.randn(n, FEATURES + 1, generator=generator) for n in examples]
    return [(rows[:, :-1], rows[:, -1]) for rows in sets]


def builder(network, likelihood=None):
    def build(k):
        schedule = mnvi.StepSchedule({0: 0.01, 2: 1.0})
        return mnvi.Objective(network(), mnvi.ELBO(likelihood or mnvi.GaussianLikelihood(), 50 + k % 2, schedule))

    return build


def method(name):
    hyperparameters = {"prior_variance": 10.0} if name in ("mnvi", "mfvi", "smfvi", "mc_mfvi") else {}
    dropout = 0.2 if name == "mc_dropout" else 0.0
    return lambda: mnvi.methods.build(name, lambda: mnvi.models.mlp(FEATURES, 10, dropout=dropout), **hyperparameters)


def trained_alone(build, k, examples, recipe):
    torch.manual_seed(SEEDS[k])
    objective = build(k).train()
    parameters = list(objective.parameters())
    if recipe.optimizer == "sgd":
        optimizer = torch.optim.SGD(
            parameters, recipe.learning_rate, recipe.momentum, 0, recipe.weight_decay, recipe.nesterov
        )
    else:
        amsgrad = recipe.optimizer == "amsgrad"
        optimizer = torch.optim.Adam(
            parameters, recipe.learning_rate, weight_decay=recipe.weight_decay, amsgrad=amsgrad
        )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(recipe.milestones), recipe.gamma)
    x, y = examples
    for epoch in range(recipe.epochs):
        for rows in torch.randperm(len(y)).split(recipe.batch_size):
            if recipe.drop_last and len(rows) < recipe.batch_size:
                continue
            optimizer.zero_grad()
            objective(x[rows], y[rows], epoch).loss.backward()
            if recipe.clip is not None:
                nn.utils.clip_grad_norm_(parameters, recipe.clip, math.inf)
            optimizer.step()
        schedule.step()
    return objective.state_dict()


def assert_as_alone(build, recipe, counts=(50, 51, 50), atol=1e-6, **settings):
    together = replicas.train(build, data(counts), SEEDS, recipe, **settings)
    for k, examples in enumerate(data(counts)):
        for name, alone in trained_alone(build, k, examples, recipe).items():
            torch.testing.assert_close(together.state[name][k], alone, rtol=1e-4, atol=atol, msg=f"{name} of {k}")


@pytest.mark.parametrize("name", mnvi.methods.NAMES)
def test_every_method_ends_as_if_trained_alone(name):
    with mnvi.options(relu_floor=1e-5):
        assert_as_alone(builder(method(name)), RECIPE)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "learning_rate": 0.01, "momentum": 0.0},
        {"optimizer": "amsgrad", "learning_rate": 0.01, "momentum": 0.0, "weight_decay": 0.1},
        {"nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.0, "clip": None, "learning_rate": 0.001},
        {"drop_last": True},
    ],
    ids=["adam", "amsgrad with decay", "nesterov with decay", "plain", "without last batch"],
)
def test_every_optimiser_ends_as_torch_s_own(changes):
    assert_as_alone(builder(method("deterministic")), dataclasses.replace(RECIPE, **changes))


def test_batch_norm_s_running_statistics_follow():
    assert_as_alone(
        builder(lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))), RECIPE
    )


def test_positions_that_share_weights_do_so_in_replicas():
    def network():
        net = nn.Sequential(
            nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 2, 3, padding=1),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        )  # fmt: skip
        return mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0))

    with mnvi.options(spatial="shared_weights"):
        assert_as_alone(builder(network), RECIPE)


class Frozen(nn.Module):
    """Its first layer is not trained."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8).requires_grad_(False), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Tied(nn.Module):
    """Two names for a layer, and two for a weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 2)
        self.again, self.other = self.first, nn.Linear(FEATURES, FEATURES)
        self.other.weight = self.first.weight

    def forward(self, x):
        return self.last(self.other(torch.relu(self.again(torch.relu(self.first(x))))))


class Buffered(nn.Module):
    """Buffers that are not floating point, one that is shared, one that is replaced, and one that is not saved."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, 2)
        self.register_buffer("kept", torch.rand(FEATURES) < 0.7)
        self.register_buffer("same", self.kept)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("total", torch.tensor(0))
        self.register_buffer("factor", torch.rand(2), persistent=False)

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.total = self.total + len(x)
        return self.layer(x * self.kept * self.same) * self.factor


@pytest.mark.parametrize("network", [Frozen, Tied, Buffered])
def test_a_user_s_own_module_trains_as_alone_and_comes_back(network):
    build = builder(network)
    together = replicas.train(build, data(), SEEDS, RECIPE)
    for k, examples in enumerate(data()):
        alone, module = trained_alone(build, k, examples, RECIPE), together.module(k)
        torch.testing.assert_close(dict(module.state_dict()), dict(alone), rtol=1e-4, atol=1e-6)
        assert module.net(torch.ones(5, FEATURES)).shape == (5, 2)
        assert set(together.state) <= set(alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda net: net.requires_grad_(False), r"build\(0\) has no parameter to train"),
        (
            lambda net: net.append(nn.Linear(2, 2).double()),
            r"several types \(.*float32.*float64\); convert them to one",
        ),
    ],
)
def test_parameters_that_cannot_be_trained_are_named(change, message):
    build = builder(lambda: change(nn.Sequential(nn.Linear(FEATURES, 2))))
    with pytest.raises(ValueError, match=message):
        replicas.train(build, data(), SEEDS, RECIPE)


def test_a_parameter_that_replicas_cannot_each_have_is_named():
    class Listed(nn.Linear):
        def __init__(self):
            super().__init__(FEATURES, 2)
            self.listed = [self.weight]

        def forward(self, x):
            return nn.functional.linear(x, self.listed[0], self.bias)

    with pytest.raises(ValueError, match=r"net.weight is read from a list .* as an attribute of its module"):
        replicas.train(builder(Listed), data(), SEEDS, RECIPE)


def test_a_state_of_another_build_is_refused_by_its_names():
    state = {"net.0.weight": torch.zeros(1, 2, 3), "net.0.bias": torch.zeros(1, 2)}
    other = builder(lambda: nn.Sequential(nn.Linear(FEATURES, 2)))
    with pytest.raises(ValueError, match=r"state and build\(0\) differ in net.0.weight; pass the build"):
        replicas.load(other, [0], state, torch.zeros(1, 1)).module(0)


def test_noise_inside_the_likelihood_comes_from_each_replica_s_generator():
    def build(k):
        net = mnvi.convert(nn.Linear(FEATURES, 3), mnvi.MultiplicativeNoise(1.0))
        return mnvi.Objective(net, mnvi.ELBO(mnvi.CategoricalLikelihood(num_samples=4), num_data=50))

    labelled = [(x, y.gt(0).long()) for x, y in data()]
    together = replicas.train(build, labelled, SEEDS, RECIPE)
    alone = trained_alone(build, 1, labelled[1], RECIPE)
    torch.testing.assert_close(together.state["net.weight"][1], alone["net.weight"], rtol=1e-4, atol=1e-6)


def test_blocks_do_not_change_results(monkeypatch):
    whole = replicas.train(builder(method("mnvi")), data(), SEEDS, RECIPE)
    monkeypatch.setattr(training, "CACHE", 1)
    blocks = []
    single = replicas.train(
        builder(method("mnvi")), data(), SEEDS, RECIPE, progress=lambda members, *_: blocks.append(members)
    )
    assert [0] in blocks and [2] in blocks
    torch.testing.assert_close(whole.state, single.state, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnvi", "mc_dropout"])
def test_a_compiled_step_gives_the_same_networks(name):
    with mnvi.options(relu_floor=1e-5):
        recorded = replicas.train(builder(method(name)), data((50, 50, 50)), SEEDS, RECIPE)
        compiled = replicas.train(builder(method(name)), data((50, 50, 50)), SEEDS, RECIPE, compile=True)
    torch.testing.assert_close(compiled.state, recorded.state, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_step_ends_as_if_trained_alone():
    assert_as_alone(builder(method("deterministic")), RECIPE, (50, 50, 50), atol=1e-5, compile=True)


@pytest.mark.parametrize("count", [10, 1000])
def test_what_one_step_touches_does_not_grow_with_the_number_of_replicas(count, monkeypatch):
    touched, largest = [], 1 << 17

    class Measured(Recording):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            touched.append(self.working_set())

    monkeypatch.setattr(step, "Recording", Measured)
    monkeypatch.setattr(training, "CACHE", largest)
    build, sizes = builder(lambda: nn.Linear(FEATURES, 2)), set()
    recipe = dataclasses.replace(RECIPE, epochs=1, batch_size=50)
    replicas.train(build, data((50,)) * count, range(count), recipe, progress=lambda some, *_: sizes.add(len(some)))
    assert max(sizes) < 250
    assert max(touched) <= largest


MEMORY = """
import resource, sys, torch, mnvi
from mnvi import replicas

def build(k):
    net = torch.nn.Sequential(torch.nn.Linear(4, 200), torch.nn.ReLU(), torch.nn.Linear(200, 2))
    return mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=20))

count = int(sys.argv[1])
data = [(torch.ones(20, 4), torch.ones(20))] * count
trained = replicas.train(build, data, range(count), replicas.Recipe(epochs=1, batch_size=20, learning_rate=0.01))
weights = sum(value.nbytes for value in trained.state.values())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, weights)
"""


@pytest.mark.slow
def test_more_replicas_take_no_more_memory_than_their_weights():
    def measured(count):
        command = [sys.executable, "-c", MEMORY, str(count)]
        return map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    (few, few_weights), (many, many_weights) = measured(200), measured(2000)
    each = 24 << 10  # bytes of a replica's generator and of Python's objects for it
    # Memory holds the weights from the start and from the end.
    assert many - few < 2 * (many_weights - few_weights) + 1800 * each


def plain(k):
    return mnvi.models.mlp(FEATURES, 10)


SEARCHES = {
    "prior": lambda k: mnvi.convert(plain(k), mnvi.MeanField(prior_variance=(10.0, 0.1)[k % 2])),
    "dropout": lambda k: mnvi.models.mlp(FEATURES, 10, dropout=(0.1, 0.5)[k % 2]),
    "width": lambda k: mnvi.models.mlp(FEATURES, (10, 6)[k % 2]),
    "layers": lambda k: nn.Sequential(plain(k), *[nn.Linear(2, 2)] * (k % 2)),
    "activation": lambda k: nn.Sequential(plain(k), (nn.Tanh(), nn.Hardtanh())[k % 2]),
}


def trial(network):
    return lambda k: mnvi.Objective(network(k), mnvi.ELBO(mnvi.GaussianLikelihood(), 50))


@pytest.mark.parametrize("network", SEARCHES.values(), ids=SEARCHES)
def test_trials_of_a_search_train_each_with_its_own_hyperparameters(network):
    build, examples, blocks = trial(network), data((50, 50, 50)), []
    together = replicas.train(build, examples, SEEDS, RECIPE, progress=lambda members, *_: blocks.append(members))
    assert blocks[0] == [0, 2] and blocks[-1] == [1]
    for k in range(3):
        alone = trained_alone(build, k, examples[k], RECIPE)
        torch.testing.assert_close(dict(together.module(k).state_dict()), dict(alone), rtol=1e-4, atol=1e-6)


def test_the_likelihood_of_each_replica_is_its_own():
    def build(k):
        likelihood = mnvi.CategoricalLikelihood(approximation=("second_order", "probit")[k % 2])
        net = mnvi.convert(nn.Linear(FEATURES, 3), mnvi.MultiplicativeNoise(1.0))
        return mnvi.Objective(net, mnvi.ELBO(likelihood, num_data=50))

    labelled = [(x, y.gt(0).long()) for x, y in data()]
    together = replicas.train(build, labelled, SEEDS, RECIPE)
    alone = trained_alone(build, 1, labelled[1], RECIPE)
    torch.testing.assert_close(together.state["net.weight"][1], alone["net.weight"], rtol=1e-4, atol=1e-6)


def test_what_training_does_not_read_keeps_no_replicas_apart():
    def build(k):
        settings = {"seed": k, "num_samples": 4 + k, "prior_variance": 1.0}
        net = mnvi.methods.build("mc_mfvi", lambda: plain(k), **settings)
        return mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=50 + k, kappa=0.1 * k))

    blocks = []
    replicas.train(build, data((50,)) * 3, SEEDS, RECIPE, progress=lambda members, *_: blocks.append(members))
    assert blocks == [[0, 1, 2]] * RECIPE.epochs


def test_replicas_of_other_shapes_are_saved_and_loaded(tmp_path):
    build = trial(SEARCHES["width"])
    trained = replicas.train(build, data(), SEEDS, RECIPE)
    torch.save(trained.state, tmp_path / "state.pt")
    again = replicas.load(build, SEEDS, torch.load(tmp_path / "state.pt"), trained.losses)
    for k in range(3):
        torch.testing.assert_close(again.module(k).state_dict(), trained.module(k).state_dict(), rtol=0, atol=0)


def test_a_replica_that_diverges_is_named_and_harms_no_other():
    broken = data((50, 50, 50))
    broken[1][1][7] = math.nan
    replicated = replicas.train(builder(method("mnvi")), broken, SEEDS, RECIPE)
    sound = replicas.train(builder(method("mnvi")), data((50, 50, 50)), SEEDS, RECIPE)
    assert replicated.failures == {1: 0}
    for name, values in replicated.state.items():
        assert torch.equal(values[[0, 2]], sound.state[name][[0, 2]]), name


def test_module_returns_the_trained_network_in_evaluation_mode():
    build = builder(method("mc_dropout"))
    trained = replicas.train(build, data(), SEEDS, RECIPE)
    again = replicas.load(build, SEEDS, trained.state, trained.losses)
    module = again.module(2)
    assert not module.training
    torch.testing.assert_close(dict(module.state_dict()), {n: v[2] for n, v in trained.state.items()})


def test_losses_are_those_of_the_epochs():
    trained = replicas.train(builder(method("deterministic")), data(), SEEDS, RECIPE)
    assert trained.losses.shape == (3, 3)
    assert (trained.losses[:, -1] < trained.losses[:, 0]).all()


def test_a_loss_is_the_mean_over_the_batches_that_were_not_dropped():
    alike = [(torch.ones(50, FEATURES), torch.ones(50))] * len(SEEDS)
    still = dataclasses.replace(RECIPE, learning_rate=1e-12)
    kept, dropped = (
        replicas.train(
            builder(method("deterministic")), alike, SEEDS, dataclasses.replace(still, drop_last=drop)
        ).losses
        for drop in (False, True)
    )
    torch.testing.assert_close(dropped, kept)


def test_dropping_the_last_batch_must_leave_one():
    with pytest.raises(ValueError, match="drop_last=True leaves no batch of 64 among 50 examples; lower batch_size"):
        replicas.train(
            builder(method("mnvi")), data(), SEEDS, dataclasses.replace(RECIPE, batch_size=64, drop_last=True)
        )


def test_torch_s_generator_is_left_as_it_was():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    replicas.train(builder(method("mc_dropout")), data(), SEEDS, RECIPE)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("epochs", 0, "a whole number >= 1"),
        ("epochs", True, "a whole number"),
        ("batch_size", 1.5, "a whole number >= 1"),
        ("learning_rate", -1.0, "a finite number > 0"),
        ("learning_rate", math.nan, "a finite number > 0"),
        ("optimizer", "lamb", "one of sgd, adam, amsgrad"),
        ("optimizer", ["sgd"], "one of sgd, adam, amsgrad"),
        ("momentum", -3, "a finite number >= 0 and < 1"),
        ("momentum", 1.0, "a finite number >= 0 and < 1"),
        ("momentum", "a", "a finite number >= 0 and < 1"),
        ("nesterov", "no", "True or False"),
        ("drop_last", 1, "True or False"),
        ("weight_decay", -1, "a finite number >= 0"),
        ("weight_decay", math.inf, "a finite number >= 0"),
        ("milestones", 3, "a list of epochs"),
        ("milestones", "12", "a list of epochs"),
        ("gamma", math.nan, "a finite number > 0"),
        ("gamma", 0.0, "a finite number > 0"),
        ("clip", 0.0, "a finite number > 0"),
        ("clip", "a", "a finite number > 0"),
        ("clip", math.nan, "a finite number > 0"),
    ],
)
def test_a_recipe_names_its_bad_value_and_what_is_expected(key, value, expected):
    settings = {"epochs": 1, "batch_size": 1, "learning_rate": 0.1, key: value}
    with pytest.raises(ValueError, match=re.escape(f"Recipe: {key}={value!r} must be {expected}")):
        replicas.Recipe(**settings)


@pytest.mark.parametrize("epoch", [1.5, -1])
def test_a_milestone_is_an_epoch(epoch):
    with pytest.raises(ValueError, match=re.escape(f"Recipe: a milestone={epoch} must be a whole number >= 0")):
        replicas.Recipe(epochs=1, batch_size=1, learning_rate=0.1, milestones=(0, epoch))


@pytest.mark.parametrize("optimizer", ["adam", "amsgrad"])
@pytest.mark.parametrize(("key", "value"), [("momentum", 0.9), ("nesterov", True)])
def test_a_recipe_refuses_what_its_optimiser_would_ignore(optimizer, key, value):
    settings = {"epochs": 1, "batch_size": 1, "learning_rate": 0.1, "optimizer": optimizer, key: value}
    with pytest.raises(ValueError, match=f"{key}={value} is for sgd, not for {optimizer}; leave it out"):
        replicas.Recipe(**settings)


def test_nesterov_needs_momentum():
    with pytest.raises(ValueError, match="nesterov=True needs a momentum above 0"):
        replicas.Recipe(epochs=1, batch_size=1, learning_rate=0.1, nesterov=True)


def test_seeds_and_data_must_be_equally_many():
    with pytest.raises(ValueError, match="data has 3 entries and seeds 2"):
        replicas.train(builder(method("mnvi")), data(), [1, 2], RECIPE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: (pair for pair in data()), "data must be a list of (inputs, targets), got a generator"),
        (
            lambda: [(x.numpy(), y.numpy()) for x, y in data()],
            "data[0] must be two tensors, inputs and targets, got (nda",
        ),
        (lambda: [*data()[:2], data()[2][:1]], "data[2] must be two tensors, inputs and targets, got (Tensor)"),
    ],
)
def test_data_must_be_pairs_of_tensors(given, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        replicas.train(builder(method("mnvi")), given(), SEEDS, RECIPE)


def test_build_must_return_an_objective():
    with pytest.raises(TypeError, match=r"build\(0\) must return an mnvi.Objective, got a Linear"):
        replicas.train(lambda k: nn.Linear(4, 2), data(), SEEDS, RECIPE)


def test_an_unknown_random_operation_is_refused():
    with pytest.raises(NotImplementedError, match=r"poisson.*each draw from it with their own generator"):
        Recording(lambda x: torch.poisson(x), (torch.ones(2, 3),), [torch.Generator()] * 2)


def test_a_recording_leaves_out_what_is_computed_twice_and_equals_the_function():
    def function(x):
        a = torch.exp(x * 1).view(x.shape).transpose(0, 1).transpose(0, 1)
        b = torch.exp(x)
        return (a + b) * torch.ones_like(x)

    x = torch.randn(3, 4)
    recording = Recording(function, (x,), [])
    names = [str(node.target) for node in recording.module.graph.nodes]
    assert sum("exp" in name for name in names) == 1
    assert not any("transpose" in name or "ones_like" in name for name in names)
    assert torch.equal(recording(x), function(x))


def test_a_recording_keeps_what_is_changed_in_place():
    def function(x):
        total = torch.zeros_like(x)
        view = total[0]
        view.add_(x[0])
        return total

    x = torch.randn(3, 4)
    recording = Recording(function, (x,), [])
    recording(x)
    assert torch.equal(recording(x), function(x))


def written_through_a_view(x):
    h = x * 2
    before = torch.exp(h)
    h[:, 0] = 0
    return before, torch.exp(h)


def written_and_read_through_views(x):
    h = x * 2
    first, rest = h[0], h[0:2]
    before = rest * 1, torch.exp(rest)
    first.zero_()
    return before, torch.exp(rest)


def written_through_a_part(x):
    h = x * 2
    before = torch.exp(h)
    left, _ = h.split(2, dim=1)
    left.mul_(3)
    return before, torch.exp(h)


def written_twice(x):
    h = x * 2
    same = h[1].add_(1)
    before = torch.exp(same)
    h[1].mul_(2)
    return before, torch.exp(same)


def written_as_a_second_argument(x):
    mean, var = torch.zeros(4), torch.ones(4)
    before = torch.exp(mean)
    torch.nn.functional.batch_norm(x, mean, var, training=True)
    return before, torch.exp(mean)


WRITING = [
    written_through_a_view, written_and_read_through_views, written_through_a_part, written_twice,
    written_as_a_second_argument,
]  # fmt: skip


@pytest.mark.parametrize("function", WRITING, ids=lambda function: function.__name__)
def test_a_recording_computes_anew_what_was_written_to(function):
    x = torch.randn(3, 4)
    recording = Recording(function, (x,), [])
    torch.testing.assert_close(recording(x), function(x), rtol=0, atol=0)
    torch.testing.assert_close(recording(x), function(x), rtol=0, atol=0)


def test_relu_under_torch_func_equals_eager(subtests):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(5, 7, generator=generator) * 3
    var = torch.rand(5, 7, generator=generator) * 2e-5

    def total(mean, var):
        out = torch.relu(mnvi.Gaussian.trusted(mean, var))
        return (out.mean * torch.arange(7)).sum() + (out.var * torch.arange(7) ** 2).sum()

    with mnvi.options(relu_floor=1e-5):
        together = torch.vmap(torch.func.grad(total, (0, 1)))(mean, var)
        leaves = [t.clone().requires_grad_() for t in (mean, var)]
        sum(total(m, v) for m, v in zip(*leaves, strict=True)).backward()
    for name, got, leaf in zip(("mean", "var"), together, leaves, strict=True):
        with subtests.test(name):
            torch.testing.assert_close(got, leaf.grad)
