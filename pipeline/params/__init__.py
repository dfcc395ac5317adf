"""params.yaml as typed, validated settings. Nothing else in the pipeline reads that file.

>>> from pipeline import params
>>> cell = params.load("params.yaml").cell("boston-mnvi")
>>> cell.experiment.learning_rate, cell.hyperparameters["prior_variance"]
(0.05, 10.0)
"""

from pipeline.params.cells import Cell
from pipeline.params.reading import Params, load
from pipeline.params.settings import (
    ClassificationLimits,
    Dataset,
    Experiment,
    Limits,
    Method,
    RegressionLimits,
    Resources,
    Study,
)

__all__ = ["load", "Params", "Cell", "Study", "Resources", "Dataset", "Experiment", "Method"]
__all__ += ["Limits", "RegressionLimits", "ClassificationLimits"]
