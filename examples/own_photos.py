"""Your own photographs: a pretrained network learns your classes and says which photographs a person should look at.

    MNVI_PHOTOS=FOLDER python examples/own_photos.py          # one subfolder of photographs for each class

EfficientNet-lite0 turns each photograph into 1,280 features once. A Bayesian last layer learns your classes from them
in seconds. Without a folder the photographs are tiles of scikit-learn's two, a temple and a flower. The figure shows
the least certain photographs of the test half.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import mnvi
from pipeline.data import released_weights

QUICK = "MNVI_QUICK" in os.environ  # random weights and small photographs, to try the code
SIDE = 64 if QUICK else 224

if "MNVI_PHOTOS" in os.environ:
    folders = sorted(place for place in Path(os.environ["MNVI_PHOTOS"]).iterdir() if place.is_dir())
    names = [folder.name for folder in folders]
    photos = [(Image.open(path), label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
else:
    names = ["temple", "flower"]
    pictures = map(Image.fromarray, load_sample_images().images)
    corners = [(left, top) for top in range(0, 420, 60) for left in range(0, 600, 80)]
    photos = [(image.crop((x, y, x + 80, y + 60)), k) for k, image in enumerate(pictures) for x, y in corners]

pixels = [np.array(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for image, _ in photos]
x = (torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2).float() - 127) / 128
y = torch.tensor([label for _, label in photos])

torch.manual_seed(0)
weights = None if QUICK else released_weights.find("efficientnet-lite0")
body = mnvi.models.efficientnet_lite0(weights=weights).eval()
del body.fc
with torch.inference_mode():
    features = torch.cat([body(part) for part in x.split(16)]).clone()

order = torch.randperm(len(y))
train, test = order[::2], order[1::2]
last = mnvi.convert(torch.nn.Linear(1280, len(names)), mnvi.MultiplicativeNoise(prior_variance=1.0))
fitted = mnvi.fit(last, (features[train], y[train]), epochs=2 if QUICK else 50, progress=False)
prediction = mnvi.predict(fitted, features[test], refer=0.1)

wrong = prediction.labels != y[test]
print(f"{len(train)} photographs to learn from, {len(test)} to test on: {100 * wrong.double().mean():.1f} % wrong")
print(
    f"{int(prediction.refer.sum())} referred to a person; of the others {int(wrong[~prediction.refer].sum())} are wrong"
)

figure, panels = plt.subplots(2, 4, figsize=(9, 5), layout="constrained")
for place, axes in zip(prediction.total.argsort(descending=True), panels.flat, strict=False):
    axes.imshow(pixels[test[place]])
    axes.set_title(f"{names[prediction.labels[place]]}, {prediction.probs[place].max():.2f}")
for axes in panels.flat:
    axes.set_axis_off()
figure.savefig("own_photos.png", dpi=110)
