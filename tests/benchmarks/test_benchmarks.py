"""The benchmark commands measure what they say, and the docs show what they wrote."""

import gzip
import json
from pathlib import Path

import pytest
import torch

import mnvi
from benchmarks import factored, positions, replicas, stability
from benchmarks.subjects import Subject
from benchmarks.tables import PAGE
from benchmarks.timing import interleaved, kept_for_backward


def test_every_step_takes_its_turn_in_every_round() -> None:
    calls: list[str] = []
    times = interleaved([lambda: calls.append("a"), lambda: calls.append("b")], rounds=3)
    assert "".join(calls) == "aabb" + "ababab"
    assert all(time >= 0 for time in times)


def test_memory_counts_what_autograd_holds_and_no_parameter() -> None:
    subject = Subject("lenet", "deterministic", "eager", "training", batch=2)
    batch = 2 * 4  # bytes of one number of each of two images
    least = batch * (28 * 28 + 32 * 24 * 24 + 64 * 8 * 8)  # inputs of the convolutions, outputs of their ReLUs
    assert least < kept_for_backward(subject) < 4 * least


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
def test_a_resnet_trains_on_real_images_with_finite_falling_losses(autocast: bool) -> None:
    x, y = stability.digits(side=16)
    losses = stability.train(x, y, mnvi.MultiplicativeNoise(1e-4), autocast, steps=16, batch=8)
    assert stability.falls(losses), losses


def test_a_loss_that_is_not_finite_or_rises_is_a_failure() -> None:
    assert stability.falls([3.0, 2.0, 1.0])
    assert not stability.falls([1.0, 2.0, 3.0])
    assert not stability.falls([3.0, float("nan"), 1.0])


@pytest.mark.parametrize("kinds", [["float32"], ["bfloat16"], ["float32", "bfloat16"]])
def test_stability_runs_the_chosen_kinds_alone(
    kinds: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stability, "train", lambda x, y, posterior, autocast, *_: [3.0 - autocast, 2.0, 1.0])
    with pytest.raises(SystemExit) as ended:
        stability.main(["--methods", "mnvi", "--kinds", *kinds])
    assert ended.value.code == 0
    starts = {"float32": "mnvi   float32            loss 3.000", "bfloat16": "mnvi   bfloat16 autocast  loss 2.000"}
    lines = capsys.readouterr().out.splitlines()
    assert [line[: len(starts[kind])] for line, kind in zip(lines, kinds, strict=True)] == [starts[k] for k in kinds]


@pytest.mark.parametrize(
    ("terminal", "lines"), [(True, ["step 25 of 60: loss 0.250", "step 50 of 60: loss 0.500"]), (False, [])]
)
def test_stability_shows_every_25th_step_on_a_terminal(
    terminal: bool, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stability.sys.stderr, "isatty", lambda: terminal)
    for step in range(1, 61):
        stability.show(step, 60, step / 100)
    assert capsys.readouterr().err.splitlines() == lines


def test_digits_are_standardised_colour_images() -> None:
    x, y = stability.digits()
    assert x.shape == (1797, 3, 32, 32) and set(y.tolist()) == set(range(10))
    assert x.mean().abs() < 0.1 and torch.isfinite(x).all()


@pytest.mark.slow
def test_replicas_are_measured_against_the_loop_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "replicas.json"
    sizes = ["--networks", "8", "--epochs", "1", "--rounds", "1", "--plain"]
    monkeypatch.setattr("sys.argv", ["replicas", *sizes, "--output", str(path)])
    replicas.main()
    figures = json.loads(path.read_text())
    assert (figures["networks"], figures["epochs"], figures["rounds"]) == (8, 1, 1)
    times = figures["loop_milliseconds_per_network"], figures["together_milliseconds_per_network"]
    assert min(times) > 0 and figures["ratio"] == pytest.approx(times[0] / times[1])
    assert figures["peak_memory_bytes"] > 2**20
    assert capsys.readouterr().out.endswith(replicas.markdown(figures) + "\n")


def test_networks_together_are_recorded_to_be_20_times_faster_in_less_than_2_gib() -> None:
    figures = json.loads(replicas.RESULTS.read_text())
    assert figures["networks"] >= 200 and figures["ratio"] >= 20, figures
    assert figures["peak_memory_bytes"] < 2 * 2**30


def test_quality_of_factored_variances_is_measured_on_one_network_and_another(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    torch.manual_seed(0)
    for part in ("train", "t10k"):
        for kind, numbers in (
            ("images-idx3", torch.randint(256, (16 + 40 * 784,))),
            ("labels-idx1", torch.arange(48) % 10),
        ):
            with gzip.open(raw / f"{part}-{kind}-ubyte.gz", "wb") as file:
                file.write(bytes(numbers.tolist()))
    records = [
        record
        for trained in factored.TRAINED
        for record in factored.measure(tmp_path, examples=30, epochs=1, seed=0, trained=trained)
    ]
    assert [(r["trained"], r["evaluated"]) for r in records] == list(factored.ROWS)
    exact, approximate, _ = records
    assert exact["off"] == 0 < approximate["off"] < 0.2
    assert "| exact | factored |" in factored.markdown({"records": records})


def test_the_guide_shows_the_recorded_quality() -> None:
    guide = PAGE.parent / "guide.md"
    assert factored.markdown(json.loads(factored.RESULTS.read_text())) in guide.read_text()


def test_the_cost_of_shared_weights_is_a_ratio_of_two_passes(tmp_path, monkeypatch):
    arguments = ["--models", "resnet20", "--modes", "eager", "--batch", "2", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", ["positions", *arguments, "--output", str(tmp_path / "found.json")])
    threads = torch.get_num_threads()
    try:
        positions.main()
    finally:
        torch.set_num_threads(threads)
    records = json.loads((tmp_path / "found.json").read_text())["records"]
    assert [record["quantity"] for record in records] == ["inference", "training"]
    assert all(record["ratio"] * record["independent"] == pytest.approx(record["shared_weights"]) for record in records)
    assert "| resnet18 | compiled | not run | not run |" in positions.markdown(records)
