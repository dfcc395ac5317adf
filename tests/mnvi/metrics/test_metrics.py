"""The metrics against hand-computed values and against plain loops over the definitions."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Categorical, Independent, Laplace, MixtureSameFamily, MultivariateNormal, Normal

from mnvi import metrics

PROBS = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.5, 0.5]])
LABELS = torch.tensor([0, 1, 1, 1])


def random_predictions(num_data=300, num_classes=5, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_data, num_classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    return (1.5 * logits).softmax(-1).to(dtype), labels  # overconfident, so that calibration errors are not zero


def entropy_of(row):
    return -sum(p * math.log(p) for p in row if p > 0)


def loop_ece(probs, labels, num_bins):
    total = 0.0
    for k in range(num_bins):
        members = [
            (max(row), row.index(max(row)) == label)
            for row, label in zip(probs, labels, strict=True)
            if k / num_bins < max(row) <= (k + 1) / num_bins
        ]
        if members:
            confidence = sum(c for c, _ in members) / len(members)
            accuracy = sum(hit for _, hit in members) / len(members)
            total += len(members) / len(probs) * abs(confidence - accuracy)
    return total


def loop_rejection_errors(probs, labels):
    """Error of what remains after 0, 1, ... N-1 rejections, one example rejected at a time."""
    remaining = list(range(len(probs)))
    errors = []
    while remaining:
        errors.append(sum(probs[n].index(max(probs[n])) != labels[n] for n in remaining) / len(remaining))
        remaining.remove(max(remaining, key=lambda n: entropy_of(probs[n])))  # max returns the first of equals
    return errors


def test_misclassification_of_a_hand_computed_example():
    # Wrong: the second (0.6 for class 0) and the fourth (a tie, which goes to class 0).
    assert metrics.misclassification(PROBS, LABELS).item() == 0.5


def test_nll_of_a_hand_computed_example():
    expected = -(math.log(0.9) + math.log(0.4) + math.log(0.7) + math.log(0.5)) / 4
    assert metrics.nll(PROBS.double(), LABELS).item() == pytest.approx(expected, rel=1e-6)


def test_nll_is_infinite_when_a_true_class_has_probability_zero():
    assert metrics.nll(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([1, 0])).item() == math.inf


def test_brier_of_a_hand_computed_example():
    # 2 * 0.1², 2 * 0.6², 2 * 0.3², 2 * 0.5²
    assert metrics.brier(PROBS, LABELS).item() == pytest.approx((0.02 + 0.72 + 0.18 + 0.5) / 4, rel=1e-6)


def test_brier_sums_over_all_classes():
    probs, labels = random_predictions()
    loop = [
        sum((p - (c == label)) ** 2 for c, p in enumerate(row))
        for row, label in zip(probs.tolist(), labels.tolist(), strict=True)
    ]
    assert metrics.brier(probs, labels).item() == pytest.approx(sum(loop) / len(loop), rel=1e-12)


def test_ece_of_a_hand_computed_example():
    # Two bins: (0, 0.5] holds the fourth, wrong; (0.5, 1] the others, mean confidence 2.2/3, two of three right.
    expected = 1 / 4 * 0.5 + 3 / 4 * abs(2.2 / 3 - 2 / 3)
    assert metrics.ece(PROBS, LABELS, num_bins=2).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("edge", range(1, 20))
def test_a_confidence_on_a_bin_edge_falls_in_the_lower_bin_in_every_precision(edge, dtype):
    # Enough classes that the edge is the largest probability.
    confidence = edge / 20
    num_rest = math.ceil((1 - confidence) / confidence)
    row = [confidence] + [(1 - confidence) / num_rest] * num_rest
    counts = metrics.reliability(torch.tensor([row], dtype=dtype), torch.tensor([0])).counts
    assert counts.nonzero().item() == edge - 1


@pytest.mark.parametrize("num_bins", [1, 7, 20])
def test_ece_agrees_with_a_loop_over_bins(num_bins):
    probs, labels = random_predictions()
    expected = loop_ece(probs.tolist(), labels.tolist(), num_bins)
    assert metrics.ece(probs, labels, num_bins).item() == pytest.approx(expected, rel=1e-12)


def test_ece_is_zero_for_sure_and_right_predictions():
    assert metrics.ece(torch.eye(3), torch.arange(3)).item() == 0


def test_ece_accepts_a_confidence_rounded_above_one():
    probs = torch.tensor([[1.0000001, 0.0]])
    assert metrics.reliability(probs, torch.tensor([0])).counts[-1].item() == 1


def test_reliability_marks_empty_bins_with_nan_and_counts_every_example():
    bins = metrics.reliability(PROBS.double(), LABELS, num_bins=4)
    torch.testing.assert_close(bins.counts, torch.tensor([0.0, 1, 2, 1]).double())
    nan = math.nan
    torch.testing.assert_close(bins.confidence, torch.tensor([nan, 0.5, 0.65, 0.9]).double(), equal_nan=True)
    torch.testing.assert_close(bins.accuracy, torch.tensor([nan, 0, 0.5, 1]).double(), equal_nan=True)


def test_predictive_entropy_of_certain_uniform_and_other_rows():
    probs = torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.25, 0.25]], dtype=torch.float64)
    expected = torch.tensor([0, math.log(3), 1.5 * math.log(2)], dtype=torch.float64)
    torch.testing.assert_close(metrics.predictive_entropy(probs), expected)


def test_predictive_entropy_agrees_with_torch_distributions():
    probs, _ = random_predictions(dtype=torch.float64)
    torch.testing.assert_close(metrics.predictive_entropy(probs), Categorical(probs).entropy())


def test_total_entropy_is_aleatoric_plus_mutual_information():
    sampled = torch.stack([random_predictions(seed=seed)[0] for seed in range(8)])
    parts = metrics.expected_entropy(sampled) + metrics.mutual_information(sampled)
    total = metrics.predictive_entropy(sampled.double().mean(0))
    torch.testing.assert_close(parts, total, rtol=1e-12, atol=0)


def test_mutual_information_of_contradicting_certain_samples_is_log_two():
    sampled = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert metrics.expected_entropy(sampled).item() == 0
    assert metrics.mutual_information(sampled).item() == pytest.approx(math.log(2))


def test_mutual_information_is_the_mean_divergence_from_the_mean_prediction():
    sampled = torch.stack([random_predictions(seed=seed)[0] for seed in range(8)]).double()
    divergence = (sampled * (sampled.log() - sampled.mean(0).log())).sum(-1).mean(0)
    torch.testing.assert_close(metrics.mutual_information(sampled), divergence)


def test_mutual_information_of_equal_samples_is_zero_and_never_negative():
    sampled = random_predictions()[0].expand(7, -1, -1)
    information = metrics.mutual_information(sampled)
    assert (information >= 0).all()
    assert information.max().item() < 1e-14


def test_rejection_curve_and_aumrc_of_a_hand_computed_example():
    # By falling entropy: 0.5 (wrong), 0.6 (wrong), 0.7 (right), 0.9 (right).
    curve = metrics.rejection_curve(PROBS, LABELS)
    assert curve.rejected.tolist() == [0, 0.25, 0.5, 0.75]
    torch.testing.assert_close(curve.error, torch.tensor([1 / 2, 1 / 3, 0, 0], dtype=torch.float64))
    assert metrics.aumrc(PROBS, LABELS).item() == pytest.approx(1 / 3 / 4)


def test_aumrc_rejects_by_entropy_and_not_by_largest_probability():
    # Largest probability calls the second less certain (0.5 < 0.55), entropy the first (0.94 > 0.69 nats).
    probs = torch.tensor([[0.55, 0.225, 0.225], [0.5, 0.5, 0.0]])
    labels = torch.tensor([1, 0])
    assert metrics.rejection_curve(probs, labels).error.tolist() == [0.5, 0]


def test_rejection_curve_agrees_with_rejecting_one_at_a_time():
    probs, labels = random_predictions()
    expected = loop_rejection_errors(probs.tolist(), labels.tolist())
    torch.testing.assert_close(
        metrics.rejection_curve(probs, labels).error, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0
    )
    assert metrics.aumrc(probs, labels).item() == pytest.approx(sum(expected[1:]) / len(expected), rel=1e-12)


def test_of_equal_entropies_the_earlier_is_rejected_first():
    probs = torch.tensor([[0.75, 0.25]]).repeat(1000, 1)
    labels = (torch.arange(1000) >= 500).long()  # the first half is right, the second wrong
    error = metrics.rejection_curve(probs, labels).error
    assert error[500:].eq(1).all()
    assert error[250].item() == pytest.approx(500 / 750)


def test_aumrc_of_one_example_is_zero():
    assert metrics.aumrc(torch.tensor([[0.9, 0.1]]), torch.tensor([1])).item() == 0


def test_misclassification_at_rejection_reads_the_curve():
    probs, labels = random_predictions(num_data=100)
    errors = loop_rejection_errors(probs.tolist(), labels.tolist())
    for percent in range(100):
        value = metrics.misclassification_at_rejection(probs, labels, percent / 100)
        assert value.item() == pytest.approx(errors[percent], rel=1e-12), percent


def test_a_fraction_of_an_example_is_not_rejected():
    # 0.74 of four is 2.96: two are rejected, both errors among them; 0.49 of four is 1.96: one.
    assert metrics.misclassification_at_rejection(PROBS, LABELS, 0.74).item() == 0
    assert metrics.misclassification_at_rejection(PROBS, LABELS, 0.49).item() == pytest.approx(1 / 3)


def test_a_rate_just_below_one_leaves_one_example():
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    rate = math.nextafter(1, 0)
    assert metrics.misclassification_at_rejection(probs, torch.tensor([1, 0]), rate).item() == 1


def test_metrics_of_a_million_predictions_agree_with_numpy():
    probs, labels = random_predictions(num_data=1_000_000, num_classes=10)
    p, y = probs.numpy().astype(np.float64), labels.numpy()
    wrong = p.argmax(1) != y
    confidence = p.max(1)

    assert metrics.misclassification(probs, labels).item() == wrong.mean()
    of_true = p[np.arange(len(y)), y]
    assert metrics.nll(probs, labels).item() == pytest.approx(-np.log(of_true).mean(), rel=1e-12)
    brier = (p**2).sum(1) - 2 * of_true + 1
    assert metrics.brier(probs, labels).item() == pytest.approx(brier.mean(), rel=1e-10)

    bins = np.ceil(confidence * 20).astype(int)  # no confidence of this sample lies within rounding of an edge
    ece = sum(abs((confidence - ~wrong)[bins == k].sum()) for k in range(1, 21)) / len(y)
    assert metrics.ece(probs, labels).item() == pytest.approx(ece, rel=1e-9)

    entropy = metrics.predictive_entropy(probs).numpy()
    np.testing.assert_allclose(entropy, stats.entropy(p, axis=1), rtol=1e-6, atol=1e-6)
    order = np.argsort(-entropy, kind="stable")
    remaining = np.cumsum(wrong[order][::-1])[::-1] / np.arange(len(y), 0, -1)
    assert metrics.aumrc(probs, labels).item() == pytest.approx(remaining[1:].sum() / len(y), rel=1e-12)
    assert metrics.misclassification_at_rejection(probs, labels, 0.25).item() == remaining[250_000]


def test_a_tiny_aumrc_keeps_its_digits():
    # One error in a million, the least certain but one: only y_1 = 1/(N-1) is above zero.
    num_data = 1_000_000
    top = torch.linspace(0.51, 0.99, num_data, dtype=torch.float64)
    probs = torch.stack([top, 1 - top], -1)
    labels = torch.zeros(num_data, dtype=torch.long)
    labels[1] = 1
    assert metrics.aumrc(probs, labels).item() == pytest.approx(1 / (num_data - 1) / num_data, rel=1e-12)


def loop_auroc(scores_in, scores_out):
    wins = sum((o > i) + 0.5 * (o == i) for i in scores_in for o in scores_out)
    return wins / (len(scores_in) * len(scores_out))


def test_auroc_counts_pairs_and_halves_ties():
    generator = torch.Generator().manual_seed(0)
    scores_in = torch.randint(0, 6, (80,), generator=generator).float()
    scores_out = torch.randint(2, 9, (50,), generator=generator).float()
    expected = loop_auroc(scores_in.tolist(), scores_out.tolist())
    assert metrics.auroc(scores_in, scores_out).item() == pytest.approx(expected, abs=1e-6)


def test_auroc_tells_large_scores_apart():
    # A sigmoid makes 100 and 200 equal in float32.
    assert metrics.auroc(torch.tensor([-5.0, 100.0]), torch.tensor([200.0, math.inf])).item() == 1
    assert metrics.auroc(torch.tensor([200.0]), torch.tensor([100.0])).item() == 0


def test_auroc_of_equal_scores_is_a_half():
    assert metrics.auroc(torch.ones(3), torch.ones(5)).item() == 0.5


def test_auroc_of_half_a_million_scores_agrees_with_the_rank_sum():
    generator = torch.Generator().manual_seed(0)
    scores_in = torch.randn(300_000, generator=generator)
    scores_out = torch.randn(200_000, generator=generator) + 1
    statistic = stats.mannwhitneyu(scores_out.numpy(), scores_in.numpy()).statistic
    assert metrics.auroc(scores_in, scores_out).item() == pytest.approx(statistic / (300_000 * 200_000), abs=1e-6)


def test_log_likelihood_is_the_mean_log_density():
    loc, scale, y = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0])
    expected = stats.norm.logpdf(y.numpy(), loc.numpy(), scale.numpy()).mean()
    assert metrics.log_likelihood(Normal(loc, scale), y).item() == pytest.approx(expected, rel=1e-6)


def test_log_likelihood_takes_distributions_with_an_event_shape():
    y = torch.zeros(4, 3)
    distribution = Independent(Normal(torch.zeros(4, 3), torch.ones(4, 3)), 1)
    assert metrics.log_likelihood(distribution, y).item() == pytest.approx(-1.5 * math.log(2 * math.pi))


def test_rmse_of_a_hand_computed_example():
    value = metrics.rmse(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 5.0, -1.0]))
    assert value.item() == pytest.approx(math.sqrt((0 + 9 + 16) / 3))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_normal_interval_reaches_as_far_as_its_quantile(level):
    reach = stats.norm.ppf((1 + level) / 2)
    targets = torch.tensor([-reach - 1e-4, -reach + 1e-4, 0, reach - 1e-4, reach + 1e-4]).double() * 2 + 3
    distribution = Normal(torch.full((5,), 3.0).double(), torch.full((5,), 2.0).double())
    assert metrics.interval_coverage(distribution, targets, level).item() == pytest.approx(3 / 5)


def two_normals(num_data):
    return MixtureSameFamily(
        Categorical(torch.tensor([0.3, 0.7]).double().expand(num_data, 2)),
        Normal(torch.tensor([-2.0, 1.0]).double().expand(num_data, 2), torch.tensor([0.5, 1.5]).double()),
    )


def test_mixture_interval_ends_where_the_mixture_cdf_says():
    def cdf(y):
        return 0.3 * stats.norm.cdf(y, -2, 0.5) + 0.7 * stats.norm.cdf(y, 1, 1.5)

    targets = torch.linspace(-5, 6, 401, dtype=torch.float64)
    inside = [0.1 <= cdf(y) <= 0.9 for y in targets.tolist()]
    assert 0 < sum(inside) < 401
    assert metrics.interval_coverage(two_normals(401), targets, 0.8).item() == pytest.approx(sum(inside) / 401)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Normal(torch.linspace(-1, 1, n), torch.linspace(1, 2, n)),
        lambda n: Laplace(torch.linspace(-1, 1, n), torch.linspace(1, 2, n)),
        two_normals,
    ],
    ids=["normal", "laplace", "mixture"],
)
def test_a_distribution_covers_its_own_samples_at_the_stated_level(make):
    num_data, level = 100_000, 0.9
    distribution = make(num_data)
    torch.manual_seed(0)
    coverage = metrics.interval_coverage(distribution, distribution.sample(), level).item()
    assert abs(coverage - level) < 5 * math.sqrt(level * (1 - level) / num_data)  # five standard errors


def test_interval_coverage_without_quantiles_names_the_distribution():
    distribution = MultivariateNormal(torch.zeros(3, 2), torch.eye(2))
    with pytest.raises(NotImplementedError, match="MultivariateNormal"):
        metrics.interval_coverage(distribution, torch.zeros(3, 2), 0.9)


CLASSIFICATION = [
    metrics.ece,
    metrics.aumrc,
    metrics.misclassification,
    lambda probs, labels: metrics.misclassification_at_rejection(probs, labels, 0.5),
    metrics.nll,
    metrics.brier,
    metrics.reliability,
    metrics.rejection_curve,
]
CLASSIFICATION_IDS = ["ece", "aumrc", "misclassification", "at_rejection", "nll", "brier", "reliability", "curve"]
BAD_CLASSIFICATION = {
    "label too large": (PROBS, torch.tensor([0, 1, 2, 0]), ValueError, r"labels lie in \[0, 2\].*\[0, 1\]"),
    "label negative": (PROBS, torch.tensor([0, -1, 1, 0]), ValueError, r"labels lie in \[-1, 1\]"),
    "labels of floats": (PROBS, LABELS.float(), TypeError, "labels has dtype torch.float32"),
    "labels of bools": (PROBS, LABELS.bool(), TypeError, "labels has dtype torch.bool"),
    "one label too few": (PROBS, LABELS[:3], ValueError, r"labels has shape \(3,\); expected \(4,\)"),
    "one-hot labels": (PROBS, torch.eye(4).long(), ValueError, r"labels has shape \(4, 4\)"),
    "labels in a list": (PROBS, [0, 1, 1, 1], TypeError, "labels is a list"),
    "labels elsewhere": (PROBS, LABELS.to("meta"), ValueError, "probs is on cpu, labels on meta"),
    "probs of one dimension": (PROBS[0], LABELS, ValueError, r"probs has shape \(2,\); expected \[N, C\]"),
    "probs empty": (PROBS[:0], LABELS[:0], ValueError, r"probs has shape \(0, 2\)"),
    "probs of integers": (torch.eye(4).long(), LABELS, TypeError, "probs has dtype torch.int64"),
    "a distribution": (Categorical(PROBS), LABELS, TypeError, "probs is a Categorical"),
    "logits": (PROBS.log(), LABELS, ValueError, "probs contains -2.303.*softmax"),
    "row sum": (PROBS * 2, LABELS, ValueError, "probs has a row that sums to 2"),
    "NaN": (PROBS.masked_fill(PROBS > 0.8, math.nan), LABELS, ValueError, "probs contains NaN"),
    "infinite": (PROBS.masked_fill(PROBS > 0.8, math.inf), LABELS, ValueError, "sums to inf"),
}


@pytest.mark.parametrize("metric", CLASSIFICATION, ids=CLASSIFICATION_IDS)
@pytest.mark.parametrize("case", BAD_CLASSIFICATION)
def test_bad_classification_input_is_refused(metric, case):
    probs, labels, error, message = BAD_CLASSIFICATION[case]
    with pytest.raises(error, match=message):
        metric(probs, labels)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("metric", CLASSIFICATION[:6], ids=CLASSIFICATION_IDS[:6])
def test_any_integer_dtype_of_labels_gives_the_same_value(metric, dtype):
    probs, labels = random_predictions()
    assert metric(probs, labels.to(dtype)).item() == metric(probs, labels).item()


@pytest.mark.parametrize("metric", CLASSIFICATION[:6], ids=CLASSIFICATION_IDS[:6])
def test_half_precision_softmax_is_accepted(metric):
    probs, labels = random_predictions(num_classes=100)
    for dtype in (torch.float16, torch.bfloat16):
        assert metric(probs.to(dtype), labels).item() == pytest.approx(metric(probs, labels).item(), rel=0.05)


def test_a_large_softmax_in_float32_is_accepted():
    probs = torch.randn(100, 20_000, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert metrics.predictive_entropy(probs).shape == (100,)


@pytest.mark.parametrize("num_bins", [0, -1, 2.5, True])
def test_a_bad_number_of_bins_is_refused(num_bins):
    with pytest.raises(ValueError, match=r"num_bins=.* must be a whole number >= 1"):
        metrics.ece(PROBS, LABELS, num_bins=num_bins)


@pytest.mark.parametrize("rate", [-0.1, 1, 10, math.nan])
def test_a_rate_outside_zero_to_one_is_refused(rate):
    with pytest.raises(ValueError, match=r"rate=.* must be a finite number >= 0 and < 1"):
        metrics.misclassification_at_rejection(PROBS, LABELS, rate)


@pytest.mark.parametrize("metric", [metrics.mutual_information, metrics.expected_entropy])
def test_sampled_probabilities_need_their_sample_dimension(metric):
    with pytest.raises(ValueError, match=r"sampled_probs has shape \(4, 2\); expected \[S, N, C\]"):
        metric(PROBS)


@pytest.mark.parametrize(
    ("scores_in", "scores_out", "error", "message"),
    [
        (torch.ones(2, 2), torch.ones(2), ValueError, r"scores_in has shape \(2, 2\)"),
        (torch.ones(2), torch.ones(0), ValueError, r"scores_out has shape \(0,\)"),
        (torch.ones(2), torch.tensor([math.nan]), ValueError, "NaN"),
        (torch.ones(2), torch.ones(2, device="meta"), ValueError, "scores_in is on cpu, scores_out on meta"),
        ([0.0], torch.ones(2), TypeError, "scores_in is a list"),
    ],
)
def test_bad_scores_are_refused(scores_in, scores_out, error, message):
    with pytest.raises(error, match=message):
        metrics.auroc(scores_in, scores_out)


STANDARD = Normal(torch.zeros(3), torch.ones(3))
REGRESSION = {
    "log_likelihood": metrics.log_likelihood,
    "interval_coverage": lambda distribution, targets: metrics.interval_coverage(distribution, targets, 0.9),
    "rmse": lambda distribution, targets: metrics.rmse(distribution.mean, targets),
}


@pytest.mark.parametrize("metric", REGRESSION)
@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (torch.zeros(3, 1), ValueError, r"targets has shape \(3, 1\)"),
        (torch.zeros(2), ValueError, r"targets has shape \(2,\)"),
        (torch.zeros(3).long(), TypeError, "targets has dtype torch.int64"),
        (torch.tensor([0, math.nan, 0]), ValueError, "targets contains NaN"),
        ([0.0, 0.0, 0.0], TypeError, "targets is a list"),
    ],
)
def test_bad_targets_are_refused(metric, targets, error, message):
    with pytest.raises(error, match=message):
        REGRESSION[metric](STANDARD, targets)


@pytest.mark.parametrize("metric", [metrics.log_likelihood, REGRESSION["interval_coverage"]])
def test_a_tensor_in_place_of_a_distribution_is_refused(metric):
    with pytest.raises(TypeError, match="distribution is a Tensor"):
        metric(torch.zeros(3), torch.zeros(3))


@pytest.mark.parametrize("level", [0, 1, 95, math.nan, "a"])
def test_a_level_outside_zero_to_one_is_refused(level):
    with pytest.raises(ValueError, match=f"interval_coverage: level={level!r}"):
        metrics.interval_coverage(STANDARD, torch.zeros(3), level)
