"""Monte Carlo passes, MC Dropout, sampled posteriors and ensembles."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MixtureSameFamily, Normal

import mnvi
from mnvi.models import mlp

STANDARD_ERRORS = 5


def sampled_mlp(*args, init_log_var=-2.0, **kwargs):
    return mnvi.convert(mlp(*args, **kwargs), mnvi.Sampled(mnvi.MeanField(1.0, init_log_var)))


# Batched passes


def test_evaluation_gives_the_asked_number_of_different_samples():
    net = mnvi.MonteCarlo(sampled_mlp(3), num_samples=6).eval()
    out = net(torch.randn(5, 3))
    assert isinstance(out, mnvi.Samples) and out.values.shape == (6, 5, 2)
    assert out.values.unique(dim=0).shape[0] == 6


def test_training_gives_one_sample_or_as_many_as_asked():
    x = torch.randn(5, 3)
    assert mnvi.MonteCarlo(sampled_mlp(3)).train()(x).values.shape == (1, 5, 2)
    assert mnvi.MonteCarlo(sampled_mlp(3), train_samples=4).train()(x).values.shape == (4, 5, 2)


def test_passes_keep_examples_apart():
    net = mnvi.MonteCarlo(mlp(3), num_samples=4).eval()
    x = torch.randn(5, 3)
    torch.testing.assert_close(net(x).values, net.net(x).expand(4, 5, 2))


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_chunks_bound_the_batch_and_give_all_samples(chunk):
    batches = []
    inner = mlp(3)
    inner.register_forward_pre_hook(lambda module, args: batches.append(len(args[0])))
    out = mnvi.MonteCarlo(inner, num_samples=8, chunk=chunk).eval()(torch.randn(5, 3))
    assert out.values.shape == (8, 5, 2)
    assert sum(batches) == 40 and max(batches) <= 5 * chunk


def test_a_seed_repeats_evaluation_and_leaves_the_global_generator_alone():
    net = mnvi.MonteCarlo(sampled_mlp(3), seed=1).eval()
    x = torch.randn(5, 3)
    before = torch.get_rng_state()
    first = net(x).values
    assert torch.equal(torch.get_rng_state(), before)
    torch.randn(3)
    assert torch.equal(net(x).values, first)
    net.seed = 2
    assert not torch.equal(net(x).values, first)


def test_a_seed_does_not_freeze_the_noise_of_training():
    net = mnvi.MonteCarlo(sampled_mlp(3), seed=1).train()
    x = torch.randn(5, 3)
    assert not torch.equal(net(x).values, net(x).values)


def test_without_a_seed_the_global_generator_decides():
    net, x = mnvi.MonteCarlo(sampled_mlp(3)).eval(), torch.randn(5, 3)
    torch.manual_seed(3)
    first = net(x).values
    assert not torch.equal(net(x).values, first)
    torch.manual_seed(3)
    assert torch.equal(net(x).values, first)


@pytest.mark.parametrize("argument", ["num_samples", "train_samples", "chunk"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_bad_counts_are_named(argument, value):
    with pytest.raises(ValueError, match=f"{argument}={value}"):
        mnvi.MonteCarlo(mlp(3), **{argument: value})


def test_a_sampling_free_network_is_refused_with_the_way_out():
    net = mnvi.MonteCarlo(mnvi.convert(mlp(3), mnvi.MeanField(1.0)))
    with pytest.raises(TypeError, match=r"returned a Gaussian; .*mnvi\.Sampled"):
        net(torch.randn(5, 3))


def test_sampled_passes_compile_without_graph_breaks():
    net = mnvi.MonteCarlo(sampled_mlp(3)).eval()
    out = torch.compile(net, fullgraph=True, backend="aot_eager")(torch.randn(5, 3))
    assert out.values.shape == (8, 5, 2) and out.values.unique(dim=0).shape[0] == 8


# Sampled posteriors


POSTERIORS = [
    mnvi.MeanField(1.0, init_log_var=-2.0),
    mnvi.SharedMeanField(1.0, init_log_var=-2.0),
    mnvi.MultiplicativeNoise(1.0, init_rho=0.0),
]
every_posterior = pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)


@every_posterior
@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv2d(3, 2, 3), nn.ConvTranspose2d(3, 2, 3)], ids=str)
def test_samples_of_a_layer_have_its_moments(posterior, layer):
    exact = mnvi.convert(layer, posterior)
    sampled = mnvi.convert(layer, mnvi.Sampled(posterior))
    x = torch.randn(3) if isinstance(layer, nn.Linear) else torch.randn(3, 4, 4)
    with torch.no_grad():
        expected, values = exact(x), sampled(x.expand(20_000, *x.shape))
    squares = (values - expected.mean).square()
    root = math.sqrt(len(values))
    assert ((values.mean(0) - expected.mean).abs() <= STANDARD_ERRORS * values.std(0) / root).all()
    assert ((squares.mean(0) - expected.var).abs() <= STANDARD_ERRORS * squares.std(0) / root).all()


@every_posterior
def test_checkpoints_go_both_ways_between_sampled_and_sampling_free(posterior):
    exact, sampled = mnvi.convert(mlp(3), posterior), mnvi.convert(mlp(3), mnvi.Sampled(posterior))
    exact.load_state_dict(sampled.state_dict())
    assert torch.equal(mnvi.kl_divergence(exact), mnvi.kl_divergence(sampled))
    sampled.load_state_dict(exact.state_dict())
    for a, b in zip(mnvi.bayesian_layers(exact), mnvi.bayesian_layers(sampled), strict=True):
        assert torch.equal(a.weight_variance(), b.weight_variance())
        assert (a.bias_variance() is None) == (b.bias_variance() is None)


def test_sampled_gradients_reach_every_parameter():
    net = sampled_mlp(3)
    net(torch.randn(5, 3)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.parametrize("posterior", [1.0, mnvi.Sampled(mnvi.MeanField(1.0))], ids=["number", "sampled"])
def test_sampled_wants_a_posterior_to_sample(posterior):
    with pytest.raises(TypeError, match="Sampled: posterior must be"):
        mnvi.Sampled(posterior)


# MC Dropout


def test_dropout_stays_active_in_evaluation_and_batch_norm_does_not():
    inner = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    net = mnvi.mc_dropout(inner).train().eval()
    assert not inner[1].training and not inner[0].training
    before = inner[1].running_mean.clone()
    out = net(torch.randn(5, 3))
    assert out.values.shape == (8, 5, 2) and out.values.unique(dim=0).shape[0] == 8
    assert torch.equal(inner[1].running_mean, before)


def test_mc_dropout_leaves_the_mode_as_it_was():
    assert not mnvi.mc_dropout(mlp(3, dropout=0.1).eval()).training
    assert mnvi.mc_dropout(mlp(3, dropout=0.1).train()).training


@pytest.mark.parametrize("kind", [nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_every_kind_of_dropout_counts(kind):
    net = mnvi.mc_dropout(nn.Sequential(nn.Conv2d(1, 32, 3), kind(0.5)), num_samples=4).eval()
    assert net(torch.randn(2, 1, 5, 5)).values.unique(dim=0).shape[0] == 4


def test_mean_over_passes_agrees_with_one_pass_at_a_time():
    """A dropout layer alone: the output is x/(1−p) with probability 1−p, else 0."""
    net = mnvi.mc_dropout(nn.Dropout(0.25), num_samples=20_000).eval()
    values = net(x := torch.tensor([[1.0, -2.0], [3.0, 0.5]])).values
    bound = STANDARD_ERRORS * values.std(0) / math.sqrt(len(values))
    assert ((values.mean(0) - x).abs() <= bound).all()


@pytest.mark.parametrize("net", [mlp(3), mlp(3, dropout=0.0), nn.Linear(3, 2)], ids=["mlp", "zero", "linear"])
def test_a_network_without_dropout_is_refused(net):
    with pytest.raises(ValueError, match="no dropout module with p > 0"):
        mnvi.mc_dropout(net)


@pytest.mark.parametrize("build", [mnvi.models.lenet, mnvi.models.all_cnn], ids=["lenet", "all_cnn"])
def test_mc_dropout_runs_on_the_image_models(build):
    shape = (1, 28, 28) if build is mnvi.models.lenet else (3, 32, 32)
    net = mnvi.mc_dropout(build(dropout=0.2), num_samples=3).eval()
    with torch.no_grad():
        out = net(torch.randn(2, *shape))
    probs = mnvi.CategoricalLikelihood().predictive(out).probs
    assert probs.shape == (2, 10)
    torch.testing.assert_close(probs, out.values.softmax(-1).mean(0))


# Ensembles


def test_ensemble_stacks_its_members_outputs():
    members = [mlp(3), mlp(3, hidden=(8, 8))]
    x = torch.randn(5, 3)
    torch.testing.assert_close(mnvi.Ensemble(members)(x).values, torch.stack([m(x) for m in members]))


def test_members_of_a_factory_are_those_of_their_seeds():
    before = torch.get_rng_state()
    ensemble = mnvi.Ensemble.of(lambda: mlp(3), num_members=3, seed=10)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(11)
    torch.testing.assert_close(ensemble.members[1].state_dict(), mlp(3).state_dict())
    assert not torch.equal(ensemble.members[0].output.weight, ensemble.members[1].output.weight)


def test_the_loss_is_the_mean_of_the_members_own_losses():
    ensemble, likelihood = mnvi.Ensemble.of(lambda: mlp(3), num_members=3), mnvi.GaussianLikelihood()
    x, y = torch.randn(5, 3), torch.randn(5)
    elbo = mnvi.ELBO(likelihood, num_data=5)
    own = torch.stack([elbo(member(x), y, kl=0).loss for member in ensemble.members])
    torch.testing.assert_close(elbo(ensemble(x), y, kl=0).loss, own.mean())


@pytest.mark.parametrize("training", [False, True])
def test_stacked_members_give_the_same_outputs_and_gradients(training):
    def factory():
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    x, results = torch.randn(5, 3), []
    for stacked in (False, True):
        ensemble = mnvi.Ensemble.of(factory, num_members=3, stacked=stacked).train(training)
        values = ensemble(x).values
        values.square().sum().backward()
        results.append([values, *(p.grad for p in ensemble.parameters()), *ensemble.buffers()])
    torch.testing.assert_close(*results)


def test_stacked_members_without_buffers_are_vectorised_in_training():
    plain, stacked = (mnvi.Ensemble.of(lambda: mlp(3), 3, stacked=s) for s in (False, True))
    calls = []
    for member in stacked.members[1:]:
        member.register_forward_hook(lambda *args: calls.append(args))
    x = torch.randn(5, 3)
    torch.testing.assert_close(stacked(x).values, plain(x).values)
    assert not calls


def test_unlike_members_cannot_be_stacked():
    with pytest.raises(ValueError, match="same parameters and shapes"):
        mnvi.Ensemble([mlp(3), mlp(3, hidden=8)], stacked=True)


def test_an_ensemble_needs_different_members():
    with pytest.raises(ValueError, match="empty"):
        mnvi.Ensemble([])
    with pytest.raises(ValueError, match="same network twice"):
        mnvi.Ensemble([net := mlp(3), net])
    with pytest.raises(ValueError, match="num_members=0"):
        mnvi.Ensemble.of(lambda: mlp(3), num_members=0)


def test_ensemble_state_dict_round_trip():
    first, second = (mnvi.Ensemble.of(lambda: mlp(3), 2, seed=s) for s in (0, 5))
    second.load_state_dict(first.state_dict())
    x = torch.randn(4, 3)
    assert torch.equal(first(x).values, second(x).values)


# Moment matching


def test_moment_matched_has_the_mixtures_mean_and_variance():
    out = mnvi.Samples(torch.randn(4, 6, 2))
    mixture = mnvi.GaussianLikelihood().predictive(out)
    assert isinstance(mixture, MixtureSameFamily)
    matched = mnvi.moment_matched(mixture)
    means, variances = out.values[..., 0], out.values[..., 1].exp()
    assert isinstance(matched, Normal)
    torch.testing.assert_close(matched.mean, means.mean(0))
    torch.testing.assert_close(matched.variance, (variances + means.square()).mean(0) - means.mean(0).square())


def test_moment_matched_leaves_a_normal_alone_and_refuses_classes():
    normal = mnvi.GaussianLikelihood().predictive(torch.zeros(3, 2))
    assert mnvi.moment_matched(normal) is normal
    with pytest.raises(TypeError, match="Categorical"):
        mnvi.moment_matched(mnvi.CategoricalLikelihood().predictive(torch.zeros(3, 2)))
