"""Options: the choice among approximations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import mnvi
from mnvi.rules.options import Options, current


@pytest.fixture(autouse=True)
def defaults() -> object:
    with mnvi.options():
        yield


def test_defaults() -> None:
    assert current() == Options(activation="moments", max_pool="argmax", dropout="variance", relu_floor=0.0)
    assert mnvi.options.PAPER_RELU_FLOOR == 1e-5


def test_block_changes_what_it_names_and_puts_it_back() -> None:
    with mnvi.options(max_pool="clark"):
        assert current() == Options(max_pool="clark")
        with mnvi.options(dropout="sample", max_pool="argmax"):
            assert current() == Options(dropout="sample")
        assert current() == Options(max_pool="clark")
    assert current() == Options()


def test_block_puts_back_after_an_error() -> None:
    with pytest.raises(KeyError), mnvi.options(activation="taylor"):
        raise KeyError
    assert current() == Options()


def test_one_object_may_be_used_again_and_inside_itself() -> None:
    taylor = mnvi.options(activation="taylor")
    for _ in range(2):
        with taylor, taylor:
            assert current().activation == "taylor"
        assert current() == Options()


def test_preparing_changes_nothing_and_set_keeps() -> None:
    prepared = mnvi.options(relu_floor=1e-3)
    assert current() == Options()
    prepared.set()
    assert current() == Options(relu_floor=1e-3)


def test_unknown_setting_is_named_with_the_closest_known_one() -> None:
    with pytest.raises(TypeError, match="unknown setting 'max_pol'; did you mean 'max_pool'"):
        mnvi.options(max_pol="clark")
    with pytest.raises(TypeError, match="unknown setting 'zzz'; known: activation, max_pool, dropout, relu_floor"):
        mnvi.options(zzz=1)


@pytest.mark.parametrize(
    ("name", "value"), [("activation", "exact"), ("max_pool", "max"), ("dropout", True), ("activation", None)]
)
def test_unknown_choice_is_named_with_what_is_allowed(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"options: {name}={value!r} is not one of '"):
        mnvi.options(**{name: value})


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf"), True, "1e-5", None])
def test_relu_floor_must_be_a_finite_number_not_below_zero(value: object) -> None:
    with pytest.raises(ValueError, match=f"options: relu_floor={value!r} must be a finite number >= 0"):
        mnvi.options(relu_floor=value)


def test_relu_floor_bounds_the_input_variance() -> None:
    x = mnvi.Gaussian(torch.zeros(1), torch.zeros(1))
    bounded = torch.relu(mnvi.Gaussian(torch.zeros(1), torch.full((1,), 1e-5)))
    assert torch.relu(x).var == 0
    with mnvi.options(relu_floor=mnvi.options.PAPER_RELU_FLOOR):
        assert torch.equal(torch.relu(x).var, bounded.var)


def test_compiled_function_follows_a_change_of_settings() -> None:
    compiled = torch.compile(lambda x: torch.relu(x).var, fullgraph=True, backend="eager")
    x = mnvi.Gaussian(torch.zeros(1), torch.zeros(1))
    assert compiled(x) == 0
    with mnvi.options(relu_floor=0.5):
        assert compiled(x) > 0.1
    assert compiled(x) == 0


def test_relu_floor_bounds_the_input_variance_of_the_first_order_rule_too() -> None:
    x = mnvi.Gaussian(torch.tensor([-1.0, 1.0, 1.0]), torch.tensor([0.1, 0.1, 2.0]))
    with mnvi.options(activation="taylor", relu_floor=1.0):
        assert torch.relu(x).var.tolist() == [0.0, 1.0, 2.0]


def test_full_covariances_follow_the_first_order_rule_and_its_floor() -> None:
    mean, cov = torch.tensor([-1.0, 1.0, 2.0]), torch.tensor([[0.3, 0.1, 0.1], [0.1, 0.2, 0.1], [0.1, 0.1, 4.0]])
    full, diagonal = mnvi.JointGaussian(mean, cov), mnvi.JointGaussian.trusted(mean, cov.diagonal())
    with mnvi.options(activation="taylor"):
        y = torch.relu(full)
        torch.testing.assert_close(y.mean, torch.tensor([0.0, 1.0, 2.0]))
        torch.testing.assert_close(y.cov, torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.2, 0.1], [0.0, 0.1, 4.0]]))
        torch.testing.assert_close(torch.relu(diagonal).var, torch.tensor([0.0, 0.2, 4.0]))
    with mnvi.options(activation="taylor", relu_floor=1.0):
        assert torch.relu(full).cov[1].tolist() == [0.0, 1.0, cov[1, 2].item()]
        assert torch.relu(diagonal).var.tolist() == [0.0, 1.0, 4.0]


def seen_by_a_thread(function: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_block_does_not_reach_into_another_thread() -> None:
    with mnvi.options(max_pool="clark"):
        assert seen_by_a_thread(current) == Options()


def test_what_a_thread_sets_stays_in_it() -> None:
    assert seen_by_a_thread(lambda: (mnvi.options(max_pool="clark").set(), current())[1]) == Options(max_pool="clark")
    assert current() == Options()


def test_one_block_used_by_two_threads_at_once_gives_each_its_own_back() -> None:
    block = mnvi.options(dropout="sample")
    with mnvi.options(max_pool="clark"), block:
        assert (
            seen_by_a_thread(lambda: (block.__enter__(), block.__exit__(None, None, None), current())[2]) == Options()
        )
        assert current() == Options(max_pool="clark", dropout="sample")
    assert current() == Options()


def test_tasks_of_one_thread_have_their_own() -> None:
    async def inside() -> Options:
        with mnvi.options(max_pool="clark"):
            await asyncio.sleep(0.01)
            return current()

    async def beside() -> Options:
        await asyncio.sleep(0.005)
        return current()

    async def both() -> list[Options]:
        return await asyncio.gather(inside(), beside())

    assert asyncio.run(both()) == [Options(max_pool="clark"), Options()]


def test_a_compiled_function_follows_the_options_of_its_thread() -> None:
    compiled = torch.compile(lambda x: torch.sigmoid(x), fullgraph=True, backend="eager")
    x = mnvi.Gaussian(torch.zeros(2), torch.ones(2))
    with mnvi.options(activation="taylor"):
        first_order = compiled(x)
        in_a_thread = seen_by_a_thread(lambda: compiled(x))
    torch.testing.assert_close(first_order.var, torch.full((2,), 0.0625))
    torch.testing.assert_close(in_a_thread.var, torch.sigmoid(x).var)  # type: ignore[attr-defined]


def test_a_generator_that_ends_late_leaves_the_later_block_in_force() -> None:
    def steps() -> Iterator[None]:
        with mnvi.options(relu_floor=0.5):
            yield

    generator = steps()
    next(generator)
    with mnvi.options(activation="taylor"):
        assert current() == Options(relu_floor=0.5, activation="taylor")
        next(generator, None)
        assert current() == Options(activation="taylor")
    assert current() == Options()


def test_options_that_are_never_used_warn() -> None:
    with pytest.warns(UserWarning, match=r"mnvi.options\(relu_floor=0.5\) was made but not used.*\.set\(\)") as caught:
        mnvi.options(relu_floor=0.5)
    assert caught[0].filename == __file__


def gradient_by_another_thread(inside: dict[str, float], around: dict[str, float]) -> Tensor:
    """Of a checkpointed ReLU's variance, recomputed as on a GPU: not in the thread of the forward pass."""

    def variance(mean: Tensor) -> Tensor:
        with mnvi.options(**inside):
            return torch.relu(mnvi.Gaussian(mean, torch.full_like(mean, 0.1))).var

    mean = torch.ones(1, requires_grad=True)
    with mnvi.options(**around):
        out = checkpoint(variance, mean, use_reentrant=False)
    thread = threading.Thread(target=out.backward)
    thread.start()
    thread.join()
    assert mean.grad is not None
    return mean.grad


def test_a_block_inside_a_checkpointed_function_also_holds_in_another_thread() -> None:
    floor = {"relu_floor": 2.0}
    mean = torch.ones(1, requires_grad=True)
    with mnvi.options(**floor):
        torch.relu(mnvi.Gaussian(mean, torch.full_like(mean, 0.1))).var.backward()
    assert torch.equal(gradient_by_another_thread(floor, {}), mean.grad)
    assert not torch.equal(gradient_by_another_thread({}, floor), mean.grad)  # the docstring warns of this
