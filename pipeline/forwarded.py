"""Variables of the user's environment that processes on a cluster get, too."""

from __future__ import annotations

import os
import re

from pipeline.errors import StudyError
from pipeline.masking import masked

MORE = "MNVI_FORWARD"  # names of further ones, separated by commas
NAMES = (
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "MNVI_CLUSTER_WAIT",
    "MNVI_TRACKING_WAIT",
    "MNVI_VERBOSE",
)
BEGINNINGS = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "UCX_", "PYTORCH_", "RAY_TRAIN_")  # how workers talk and allocate
_SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY|CREDENTIAL", re.I)


def variables() -> dict[str, str]:
    """The variables that are set. None may hold a secret: Ray's dashboard shows them. Set secrets on the nodes."""
    more = [name.strip() for name in os.environ.get(MORE, "").split(",") if name.strip()]
    for name in more:
        if _SECRET.search(name):
            raise StudyError(
                f"{MORE}={masked(os.environ[MORE])}: {name} looks like a secret, which Ray's dashboard would show; set "
                "it on the cluster's nodes instead"
            )
        if name not in os.environ:
            raise StudyError(f"{MORE}={os.environ[MORE]}: {name} is not set; set it, or leave it out")
    named = [name for name in os.environ if name in NAMES or name.startswith(BEGINNINGS)]
    return {name: os.environ[name] for name in sorted({*named, *more})}
