"""The networks: parameter counts, shapes, dropout places, initialisation and exchange of checkpoints."""

import math

import pytest
import torch
from torch import nn

import mnvi
from mnvi._torchvision import torchvision
from mnvi.models import all_cnn, lenet, mlp, resnet18, resnet20

IMAGE_28, IMAGE_32, IMAGE_64 = (1, 28, 28), (3, 32, 32), (3, 64, 64)

# name: (builder, shape of one input, number of outputs)
MODELS = {
    "lenet": (lenet, IMAGE_28, 10),
    "all_cnn": (all_cnn, IMAGE_32, 10),
    "resnet18-cifar10": (lambda **kwargs: resnet18(10, **kwargs), IMAGE_32, 10),
    "resnet18-cifar100": (lambda **kwargs: resnet18(100, **kwargs), IMAGE_32, 100),
    "resnet18-imagenet": (lambda **kwargs: resnet18(1000, stem="imagenet", **kwargs), IMAGE_64, 1000),
    "resnet20": (resnet20, IMAGE_32, 10),
    "mlp": (lambda **kwargs: mlp(13, **kwargs), (13,), 2),
}

# Number of parameters: deterministic, multiplicative noise, mean field.
COUNTS = {
    "lenet": (1_111_946, 1_114_027, 2_223_892),
    "all_cnn": (1_369_738, 1_370_989, 2_739_476),
    "resnet18-cifar10": (11_173_962, 11_178_317, 22_338_324),
    "resnet18-cifar100": (11_220_132, 11_224_487, 22_430_664),
    "resnet18-imagenet": (11_689_512, 11_693_867, 23_369_424),
    "resnet20": (272_474, 273_213, 543_380),
    "mlp": (13 * 50 + 50 + 50 * 2 + 2, 13 * 50 + 50 + 50 * 2 + 2 + 13 + 50, 2 * (13 * 50 + 50 + 50 * 2 + 2)),
}

RESIDUAL_BLOCKS = [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]


def build(name, **kwargs):
    return MODELS[name][0](**kwargs)


def example(name, batch=2):
    return torch.randn(batch, *MODELS[name][1], generator=torch.Generator().manual_seed(0))


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def weights(model):
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}


@pytest.mark.parametrize("name", MODELS)
def test_deterministic_parameter_count(name):
    assert num_parameters(build(name)) == COUNTS[name][0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("posterior", "column"),
    [
        pytest.param(mnvi.MultiplicativeNoise, 1, id="one for each input unit"),
        pytest.param(mnvi.SharedMeanField, 1, id="shared: one for each input unit"),
        pytest.param(mnvi.MeanField, 2, id="one for each weight and bias"),
    ],
)
def test_a_posterior_adds_its_parameters(name, posterior, column):
    bayesian = mnvi.convert(build(name), posterior(prior_variance=1e-4))
    assert num_parameters(bayesian) == COUNTS[name][column]


@pytest.mark.parametrize("name", MODELS)
def test_output_shape(name):
    assert build(name).eval()(example(name)).shape == (2, MODELS[name][2])


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("name", MODELS)
def test_a_gaussian_goes_through_in_place_of_a_tensor(name, dropout):
    x = example(name)
    model = build(name, dropout=dropout).eval()
    bayesian = mnvi.convert(model, mnvi.MultiplicativeNoise(prior_variance=1e-4)).eval()
    with torch.no_grad():
        out = bayesian(mnvi.Gaussian(x, torch.full_like(x, 0.01)))
    assert out.mean.shape == out.var.shape == (2, MODELS[name][2])
    assert (out.var > 0).all()


@pytest.mark.parametrize("size", [32, 40])
@pytest.mark.parametrize("build_model", [all_cnn, resnet18, resnet20])
def test_fully_convolutional_models_take_images_of_any_size(build_model, size):
    assert build_model(num_classes=7).eval()(torch.zeros(1, 3, size, size)).shape == (1, 7)


@pytest.mark.parametrize(("build_model", "size"), [(lenet, 28), (all_cnn, 32), (resnet18, 32), (resnet20, 32)])
def test_channels_and_classes_can_be_chosen(build_model, size):
    model = build_model(num_classes=3, in_channels=2).eval()
    assert model(torch.zeros(1, 2, size, size)).shape == (1, 3)


def test_mlp_takes_one_width_or_one_per_hidden_layer():
    assert [tuple(layer.weight.shape) for layer in weights(mlp(4, hidden=8)).values()] == [(8, 4), (2, 8)]
    deep = mlp(4, hidden=(8, 6), out_features=3)
    assert [tuple(layer.weight.shape) for layer in weights(deep).values()] == [(8, 4), (6, 8), (3, 6)]


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("lenet", ["dropout1", "dropout2", "dropout3"]),
        ("all_cnn", ["dropout1", "dropout2"]),
        ("resnet18-cifar10", [f"{block}.dropout" for block in RESIDUAL_BLOCKS]),
        ("resnet18-imagenet", [f"{block}.dropout" for block in RESIDUAL_BLOCKS]),
        ("resnet20", [f"layer{stage}.{block}.dropout" for stage in (1, 2, 3) for block in (0, 1, 2)]),
        ("mlp", ["dropout1"]),
    ],
)
def test_dropout_is_where_the_paper_has_it(name, places):
    layers = {
        place: layer for place, layer in build(name, dropout=0.3).named_modules() if isinstance(layer, nn.Dropout)
    }
    assert list(layers) == places
    assert {layer.p for layer in layers.values()} == {0.3}


@pytest.mark.parametrize(
    ("name", "followed_by"),
    [
        ("lenet", {"dropout1": "conv2", "dropout2": "flatten", "dropout3": "fc2"}),
        ("all_cnn", {"dropout1": "conv4", "dropout2": "conv7"}),
        ("mlp", {"dropout1": "output"}),
    ],
)
def test_dropout_is_the_last_step_before_the_next_layer(name, followed_by):
    order = [child for child, _ in build(name).named_children()]
    assert {place: order[order.index(place) + 1] for place in followed_by} == followed_by


def test_dropout_is_the_last_step_of_a_residual_block():
    block = resnet18(dropout=0.5).layer1[0].train()
    torch.manual_seed(0)
    out = block(torch.rand(2, 64, 8, 8))
    kept, seen = out != 0, []
    block.dropout.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    torch.manual_seed(0)
    block(torch.rand(2, 64, 8, 8))
    assert (seen[0] >= 0).all()  # it comes after the ReLU
    assert (seen[0][~kept] > 0).any()  # something was dropped
    torch.testing.assert_close(out[kept], 2 * seen[0][kept])  # what is kept is scaled by 1/(1 - p)


@pytest.mark.parametrize("name", MODELS)
def test_dropout_draws_anew_in_training_and_rests_in_evaluation(name):
    model = build(name, dropout=0.5)
    for layer in model.modules():
        layer.train(isinstance(layer, nn.Dropout))  # batch normalisation rests
    x = example(name)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_without_dropout_its_places_hand_on_the_input_itself():
    x = torch.ones(3, requires_grad=True)
    layer = lenet().train().dropout1
    assert layer(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("name", MODELS)
def test_checkpoints_are_exchanged_between_dropout_rates(name):
    deterministic, mc_dropout = build(name), build(name, dropout=0.2)
    assert list(deterministic.state_dict()) == list(mc_dropout.state_dict())
    mc_dropout.load_state_dict(deterministic.state_dict())
    x = example(name)
    assert torch.equal(mc_dropout.eval()(x), deterministic.eval()(x))


def assert_normal(weight, std):
    """Mean and standard deviation of a sample within five standard errors, and the tails of a normal."""
    n, z = weight.numel(), weight.detach().double().flatten() / std
    assert abs(z.mean().item()) < 5 / math.sqrt(n)
    assert abs(z.std().item() - 1) < 5 / math.sqrt(2 * n)
    beyond_two = math.erfc(2 / math.sqrt(2))  # 0 for the uniform distribution of this standard deviation
    assert abs((z.abs() > 2).double().mean().item() - beyond_two) < 5 * math.sqrt(beyond_two * (1 - beyond_two) / n)


@pytest.mark.parametrize("name", MODELS)
def test_weights_start_as_the_paper_says_and_biases_at_zero(name):
    torch.manual_seed(0)
    for layer in weights(build(name)).values():
        window = layer.weight[0, 0].numel()
        fan_in, fan_out = layer.weight.shape[1] * window, layer.weight.shape[0] * window
        xavier, kaiming = math.sqrt(2 / (fan_in + fan_out)), math.sqrt(2 / fan_in)
        assert_normal(layer.weight, kaiming if name.startswith("resnet") else xavier)
        assert layer.bias is None or layer.bias.eq(0).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_fixes_the_initial_weights(name):
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(torch.cat([parameter.flatten() for parameter in build(name).parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_the_imagenet_network_is_torchvisions_in_names_shapes_and_output():
    reference = torchvision.models.resnet18(num_classes=1000).eval()
    ours = resnet18(1000, stem="imagenet").eval()
    expected = {name: value.shape for name, value in reference.state_dict().items()}
    assert {name: value.shape for name, value in ours.state_dict().items()} == expected
    ours.load_state_dict(reference.state_dict())
    x = example("resnet18-imagenet")
    torch.testing.assert_close(ours(x), reference(x))


def test_the_cifar_network_differs_from_the_imagenet_one_in_its_stem_alone():
    imagenet = {name: value.shape for name, value in resnet18(10, stem="imagenet").state_dict().items()}
    cifar = {name: value.shape for name, value in resnet18(10, stem="cifar").state_dict().items()}
    assert list(cifar) == list(imagenet)
    assert [name for name in cifar if cifar[name] != imagenet[name]] == ["conv1.weight"]
    assert cifar["conv1.weight"] == (64, 3, 3, 3)


def test_the_cifar_stem_keeps_the_size_of_the_image():
    model = resnet18(10, stem="cifar").eval()
    shapes = []
    model.layer1.register_forward_hook(lambda module, args, output: shapes.append(tuple(args[0].shape)))
    model(torch.zeros(1, 3, 32, 32))
    assert shapes == [(1, 64, 32, 32)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resnet18(10, stem="mnist"), "stem is 'mnist'"),
        (lambda: resnet18(0), "num_classes=0 must be a whole number >= 1"),
        (lambda: lenet(num_classes=-1), "num_classes=-1 must be a whole number >= 1"),
        (lambda: all_cnn(num_classes=2.0), "num_classes=2.0 must be a whole number >= 1"),
        (lambda: lenet(in_channels=0), "in_channels=0 must be a whole number >= 1"),
        (lambda: mlp(0), "in_features=0 must be a whole number >= 1"),
        (lambda: mlp(3, hidden=0), "hidden=0 must be a whole number >= 1"),
        (lambda: mlp(3, hidden=True), "hidden=True must be a whole number >= 1"),
        (lambda: mlp(3, hidden=()), r"hidden is \(\)"),
        (lambda: mlp(3, hidden=(5, -2)), "hidden=-2 must be a whole number >= 1"),
        (lambda: mlp(3, out_features=0), "out_features=0 must be a whole number >= 1"),
        (lambda: resnet18(True), "num_classes=True must be a whole number >= 1"),
    ],
)
def test_bad_sizes_and_stems_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, math.nan])
@pytest.mark.parametrize("name", MODELS)
def test_dropout_outside_zero_to_one_is_refused(name, dropout):
    with pytest.raises(ValueError, match=r"dropout=.* must be a finite number >= 0 and < 1"):
        build(name, dropout=dropout)
