"""The small tables of the README and of the page that compares methods."""

from __future__ import annotations

from pipeline.report import overview, paper, tables
from pipeline.report.results import Score, Scores


def table(data: str, method: str, mean: float) -> Scores:
    metrics = {"log_likelihood": Score(mean, 0.1)}
    return Scores(f"{data}-{method}", "regression", data, data, "mlp", method, True, 20, 10, metrics=metrics)


def images(method: str, complete: bool = True) -> Scores:
    metrics = {"nll": Score(0.02, 0.001), "mr10": Score(0.1, 0.1)}
    name = f"lenet-mnist-{method}"
    return Scores(name, "classification", "mnist", "lenet-mnist", "lenet", method, complete, 4, None, metrics=metrics)


def test_summary_has_a_row_for_each_method_that_ran_to_the_end():
    records = tables.table_2([images("mnvi"), images("mfvi", complete=False)])
    text = overview.summary(records, overview.MNIST)
    lines = text.splitlines()
    assert lines[0] == "| method | runs | NLL |" and len(lines) == 3
    assert lines[2] == "| MNVI | 4 | 0.0200 ± 0.0010 (0.0177 ± 0.0008) |"


def test_summary_of_one_network_leaves_out_the_others():
    metrics = {"nll": Score(0.3, None), "aumrc": Score(0.01, None)}
    place = "classification", "cifar10", "resnet20-cifar10", "resnet20", "temperature"
    small = Scores("resnet20-cifar10-temperature", *place, True, 1, None, metrics=metrics)
    text = overview.summary(tables.table_2([images("mnvi"), small]), overview.CIFAR)
    head, _, *rows = text.splitlines()
    assert head == "| method | runs | NLL | AUMRC |" and len(rows) == 1 and "0.3000" in rows[0]


def test_comparison_averages_only_over_all_tables():
    whole = [table(data, "mnvi", -1.0 - i) for i, data in enumerate(paper.DATA_1)]
    part = [table(paper.DATA_1[0], "dvi", -1.0)]
    text = overview.comparison(tables.table_1([*whole, *part]), tables.table_2([images("mnvi")]))
    rows = {line.split(" | ")[0]: line for line in text.splitlines()}
    assert rows["| MNVI"].startswith("| MNVI | −4.000 | 0.0200 ± 0.0010 |")
    assert rows["| DVI"].startswith("| DVI |  |")


def test_without_results_the_tables_say_so():
    nothing = overview.summary(tables.table_2([]), overview.MNIST), overview.comparison(tables.table_1([]), [])
    assert nothing == ("Not run here.\n", "Not run here.\n")
