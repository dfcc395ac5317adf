"""The paper's study: data, search, training, evaluation and report as stages that DVC runs."""
