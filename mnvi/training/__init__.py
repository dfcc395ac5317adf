"""From data to predictions: training, prediction, scores, and what to refer to a person.

>>> import torch, mnvi
>>> x = torch.randn(300, 4)
>>> y = x[:, 0] + 0.1 * torch.randn(300)
>>> net = mnvi.convert(mnvi.models.mlp(4), mnvi.MultiplicativeNoise(prior_variance=1.0))
>>> fitted = mnvi.fit(net, (x[:200], y[:200]), validation=(x[200:], y[200:]), epochs=20, progress=False)
>>> prediction = mnvi.predict(fitted, torch.randn(8, 4), refer=0.25)
>>> prediction.mean.shape, int(prediction.refer.sum())
(torch.Size([8]), 2)
"""

from mnvi.training.fitted import Fitted
from mnvi.training.fitting import fit
from mnvi.training.predicting import predict
from mnvi.training.prediction import Prediction
from mnvi.training.referral import Referral
from mnvi.training.scores import evaluate

__all__ = ["Fitted", "Prediction", "Referral", "evaluate", "fit", "predict"]
