"""A table with scikit-learn: intervals for the progression of diabetes.

`mnvi.sklearn` standardises inputs and targets itself, and works in pipelines and cross-validation. The intervals should
hold 95 % of the patients that the regressor has not seen.
"""

import os

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

from mnvi.sklearn import BayesianRegressor

QUICK = "MNVI_QUICK" in os.environ

table, progression = load_diabetes(return_X_y=True)
x, x_test, y, y_test = train_test_split(table, progression, test_size=0.25, random_state=0)
regressor = BayesianRegressor(random_state=0, **({"epochs": 5} if QUICK else {})).fit(x, y)
mean = regressor.predict(x_test)
lower, upper = regressor.predict_interval(x_test, level=0.95)

held = np.mean((lower <= y_test) & (y_test <= upper))
error = np.sqrt(np.mean((mean - y_test) ** 2))
least_squares = np.sqrt(np.mean((LinearRegression().fit(x, y).predict(x_test) - y_test) ** 2))
print(f"RMSE {error:.1f}, least squares {least_squares:.1f}")
print(f"the intervals hold {100 * held:.0f} % of {len(y_test)} patients")

order = np.argsort(mean)
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.fill_between(range(len(order)), lower[order], upper[order], alpha=0.25, lw=0, label="95 % interval")
axes.plot(mean[order], label="mean")
axes.plot(y_test[order], ".", color="black", ms=4, label="true value")
axes.set(xlabel="patients in the order of the prediction", ylabel="progression after a year")
axes.legend()
figure.savefig("table_sklearn.png", dpi=110)
