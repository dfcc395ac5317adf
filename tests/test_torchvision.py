"""The smallest network of each torchvision family; ``python -m tools.torchvision_table`` tries all of them."""

import pytest

from tools.torchvision_table import examine, names, table

SMALLEST = [
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18",
    "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vgg11_bn", "vit_b_16",
    "wide_resnet50_2",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_a_network_of_every_family_carries_a_posterior(name: str) -> None:
    record = examine(name)
    assert record["layers"] > 0 and record["added"] > 0


def test_every_family_is_among_the_smallest() -> None:
    families = {"".join(filter(str.isalpha, name.split("_")[0])) for name in names()}
    assert {"".join(filter(str.isalpha, name.split("_")[0])) for name in SMALLEST} == families


def test_the_table_names_the_reason_of_a_failure() -> None:
    text = table({"net": {"model": "net", "works": False, "reason": "no rule for torch.fft"}})
    assert "0 of the 1 tried work" in text and "| net | no: no rule for torch.fft |" in text
