"""The rooms of both packages: what a file's name means, and where its tests are."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# File names that several rooms share, because each does its part of the same thing. All other names occur once.
SAME_THING = {
    (
        "mnvi/moments",
        "mnvi/rules",
    ): "dropout fourier interpolation normalization norms pooling positions positive scattering",
    ("mnvi/moments", "mnvi/rules", "mnvi/layers"): "attention",
    ("mnvi/moments", "mnvi/rules", "mnvi/values"): "joint",
    ("mnvi/moments", "mnvi/layers"): "bilinear",
    ("mnvi/values", "mnvi/layers", "mnvi/likelihoods"): "base",  # the base class of the room
    ("mnvi/training", "pipeline/images"): "checkpoints loop",  # of the library's training and of the study's
    ("mnvi/replicas", "pipeline/images", "pipeline/regression"): "training",
    ("pipeline/images", "pipeline/regression"): "evaluation predictions search",
}
SHORT = 40  # lines; a shorter module needs no tests of its own
# Modules whose tests have another name or place than the module's: where they are, from tests/ on.
ELSEWHERE = {
    "mnvi/__init__.py": "mnvi/test_house.py",
    "mnvi/_moved.py": "mnvi/test_saved_before.py",
    "mnvi/conversion/converting.py": "mnvi/conversion/test_convert.py",
    "mnvi/conversion/copying.py": "mnvi/conversion/test_convert.py",
    "mnvi/conversion/function_source.py": "mnvi/conversion/test_mean_calls.py",
    "mnvi/inference/batch_norm_pairs.py": "mnvi/inference/test_optimizing.py",
    "mnvi/inference/folding.py": "mnvi/inference/test_optimizing.py",
    "mnvi/inference/frozen.py": "mnvi/inference/test_optimizing.py",
    "mnvi/layers/attention.py": "mnvi/rules/test_attention.py",
    "mnvi/layers/recurrent_steps.py": "mnvi/layers/test_recurrent.py",
    "mnvi/layers/shifted_windows.py": "mnvi/rules/test_attention.py",
    "mnvi/methods/__init__.py": "mnvi/methods/test_by_name.py",
    "mnvi/methods/dvi.py": "mnvi/methods/test_by_name.py",
    "mnvi/methods/ensemble.py": "mnvi/methods/test_montecarlo.py",
    "mnvi/moments/activations/relu/__init__.py": "mnvi/moments/test_relu.py",
    "mnvi/moments/activations/relu/formula.py": "mnvi/moments/test_relu.py",
    "mnvi/moments/activations/relu/kernels.py": "mnvi/moments/test_relu.py",
    "mnvi/moments/affine.py": "mnvi/moments/test_linear_maps.py",
    "mnvi/moments/attention.py": "mnvi/moments/test_random_factors.py",
    "mnvi/moments/batch_norms.py": "mnvi/moments/test_linear_maps.py",
    "mnvi/moments/bilinear.py": "mnvi/layers/test_bilinear.py",
    "mnvi/moments/differentiation.py": "mnvi/moments/test_torch.py",
    "mnvi/moments/dropout.py": "mnvi/moments/test_random_factors.py",
    "mnvi/moments/interpolation.py": "mnvi/moments/test_linear_maps.py",
    "mnvi/moments/joint.py": "mnvi/moments/test_random_factors.py",
    "mnvi/moments/normalization.py": "mnvi/moments/test_linear_maps.py",
    "mnvi/moments/pooling.py": "mnvi/moments/test_linear_maps.py",
    "mnvi/moments/position_slopes.py": "mnvi/moments/test_moments_positions.py",
    "mnvi/moments/position_weights.py": "mnvi/moments/test_moments_positions.py",
    "mnvi/moments/positive.py": "mnvi/rules/test_positive.py",
    "mnvi/moments/fourier.py": "mnvi/rules/test_fourier.py",
    "mnvi/moments/grid_sampling.py": "mnvi/rules/test_interpolation.py",
    "mnvi/moments/multilinear.py": "mnvi/rules/test_products.py",
    "mnvi/moments/norms.py": "mnvi/rules/test_norms.py",
    "mnvi/moments/products.py": "mnvi/rules/test_products.py",
    "mnvi/moments/scattering.py": "mnvi/rules/test_scattering.py",
    "mnvi/moments/windows.py": "mnvi/rules/test_norms.py",
    "mnvi/rules/__init__.py": "mnvi/rules/test_table.py",
    "mnvi/rules/composites.py": "mnvi/rules/test_dependence.py",
    "mnvi/rules/contractions.py": "mnvi/rules/test_arithmetic.py",
    "mnvi/rules/dependence_warning.py": "mnvi/rules/test_dependence.py",
    "mnvi/rules/entries.py": "mnvi/rules/test_dependence.py",
    "mnvi/rules/extremes.py": "mnvi/rules/test_pooling.py",
    "mnvi/rules/joint.py": "mnvi/values/test_joint.py",
    "mnvi/methods/_learning.py": "mnvi/methods/test_variational.py",
    "mnvi/methods/_line_search.py": "mnvi/methods/test_temperature.py",
    "mnvi/methods/last_layer.py": "mnvi/methods/test_laplace.py",
    "mnvi/methods/noise_search.py": "mnvi/methods/test_noise.py",
    "mnvi/training/loaders.py": "mnvi/training/test_fitting.py",
    "mnvi/training/checkpoints.py": "mnvi/training/test_fitting.py",
    "mnvi/training/fitted.py": "mnvi/training/test_fitting.py",
    "mnvi/training/loop.py": "mnvi/training/test_fitting.py",
    "mnvi/training/prediction.py": "mnvi/training/test_predicting.py",
    "mnvi/rules/recognition.py": "mnvi/rules/test_dependence.py",
    "mnvi/rules/steps.py": "mnvi/rules/test_dependence.py",
    "mnvi/rules/sums.py": "mnvi/rules/test_copies.py",
    "mnvi/rules/position_shapes.py": "mnvi/rules/test_rules_positions.py",
    "mnvi/values/base.py": "mnvi/values/test_gaussian.py",
    "mnvi/values/samples.py": "mnvi/methods/test_montecarlo.py",
    "pipeline/data/archives.py": "pipeline/data/test_sources.py",
    "pipeline/data/downloads.py": "pipeline/data/test_sources.py",
    "pipeline/data/folders.py": "pipeline/data/test_images_data.py",
    "pipeline/data/image_arrays.py": "pipeline/data/test_images_data.py",
    "pipeline/data/image_sources.py": "pipeline/data/test_sources.py",
    "pipeline/data/imagesets.py": "pipeline/data/test_images_data.py",
    "pipeline/data/known_tables.py": "pipeline/data/test_sources.py",
    "pipeline/data/package_downloads.py": "pipeline/data/test_sources.py",
    "pipeline/data/parsing.py": "pipeline/data/test_table_arrays.py",
    "pipeline/data/shard_writing.py": "pipeline/data/test_images_data.py",
    "pipeline/data/splits.py": "pipeline/data/test_images_data.py",
    "pipeline/data/summaries.py": "security/test_untrusted_files.py",
    "pipeline/data/table_sources.py": "pipeline/data/test_sources.py",
    "pipeline/data/workbook.py": "pipeline/data/test_sources.py",
    "pipeline/done.py": "pipeline/test_nothing_to_do.py",
    "pipeline/images/curves.py": "pipeline/images/test_images_evaluation.py",
    "pipeline/images/job.py": "pipeline/images/test_images_training.py",
    "pipeline/images/pictures.py": "pipeline/images/test_images_evaluation.py",
    "pipeline/images/predictions.py": "pipeline/images/test_images_evaluation.py",
    "pipeline/images/seeds.py": "pipeline/images/test_images_evaluation.py",
    "pipeline/images/workers.py": "pipeline/images/test_images_training.py",
    "pipeline/missing.py": "pipeline/test_prepare.py",
    "pipeline/new_photos.py": "pipeline/test_new.py",
    "pipeline/params/method_settings.py": "pipeline/params/test_params.py",
    "pipeline/params/recipes.py": "pipeline/params/test_params.py",
    "pipeline/regression/baselines.py": "pipeline/regression/test_regression_evaluation.py",
    "pipeline/regression/cell_networks.py": "pipeline/regression/test_regression_training.py",
    "pipeline/regression/chunks.py": "pipeline/regression/test_regression_training.py",
    "pipeline/regression/predictions.py": "pipeline/regression/test_regression_evaluation.py",
    "pipeline/report/drawing.py": "pipeline/report/test_report_page.py",
    "pipeline/report/image_figures.py": "pipeline/report/test_report_page.py",
    "pipeline/report/landscape.py": "pipeline/report/test_report_page.py",
    "pipeline/report/markdown.py": "pipeline/report/test_report_tables.py",
    "pipeline/report/nested.py": "pipeline/report/test_report_variations.py",
    "pipeline/report/paper.py": "pipeline/report/test_report_tables.py",
    "pipeline/report/plot_files.py": "pipeline/report/test_report_page.py",
    "pipeline/report/process_figures.py": "pipeline/report/test_report_searches.py",
    "pipeline/report/provenance.py": "pipeline/report/test_report_page.py",
    "pipeline/report/regression_figures.py": "pipeline/report/test_report_page.py",
    "pipeline/report/results.py": "pipeline/report/test_report_page.py",
    "pipeline/report/views.py": "pipeline/report/test_report_page.py",
    "pipeline/report/wording.py": "pipeline/report/test_report_tables.py",
    "pipeline/report/writing.py": "pipeline/report/test_report_page.py",
    "pipeline/stages.py": "pipeline/test_nothing_to_do.py",
    "pipeline/storage.py": "pipeline/test_blobs.py",
    "pipeline/setting_types.py": "pipeline/params/test_params.py",
}


def test_a_file_name_means_one_thing() -> None:
    rooms = defaultdict(set)
    for package in ("mnvi", "pipeline"):
        for path in (ROOT / package).rglob("*.py"):
            if not path.name.startswith("__"):
                rooms[path.stem.strip("_")].add(str(path.parent.relative_to(ROOT)))
    assert {name: found for name, found in rooms.items() if len(found) > 1} == {
        name: set(places) for places, names in SAME_THING.items() for name in names.split()
    }


def modules() -> list[Path]:
    """The modules that need tests. A `__main__` is a command line, which tests of whole stages call."""
    files = [path for package in ("mnvi", "pipeline") for path in sorted((ROOT / package).rglob("*.py"))]
    long = [path for path in files if len(path.read_text().splitlines()) > SHORT]
    return [path.relative_to(ROOT) for path in long if path.name != "__main__.py"]


def mirrored(module: Path) -> tuple[list[Path], list[Path]]:
    """Where a module's tests are by its name: in a file of their own, or in one for the whole room.

    Test files need names of their own, so some begin with the name of the room: `images/loop.py` is tested in
    `images/test_images_loop.py`.
    """
    path = module.parent if module.name == "__init__.py" else module.with_suffix("")
    room, name = path.parent, path.name.strip("_")
    if not room.name:  # the package itself
        return [], []
    own = [room / f"test_{name}.py", room / f"test_{room.name}_{name}.py"]
    whole = [room / f"test_{room.name}.py", room.parent / f"test_{room.parent.name}_{room.name}.py"]
    if module.name == "__init__.py":
        whole = [path / f"test_{name}.py"]
    return [ROOT / "tests" / place for place in own], [ROOT / "tests" / place for place in whole]


@pytest.mark.parametrize("module", modules(), ids=str)
def test_a_module_has_tests_where_its_name_says_or_the_table_does(module: Path) -> None:
    own, whole = mirrored(module)
    if str(module) in ELSEWHERE:
        assert (ROOT / "tests" / ELSEWHERE[str(module)]).exists()
        assert not any(path.exists() for path in own), "it has tests of its own: remove its line from the table"
    else:
        found = any(path.exists() for path in (*own, *whole))
        assert found, f"{module}: write {own[0].relative_to(ROOT)}, or say in the table where its tests are"


def test_the_table_names_modules_that_exist() -> None:
    assert set(ELSEWHERE) <= {str(module) for module in modules()}
