"""The URLs and checksums of the data sets that can be downloaded.

A mirror holds the published files, which `convert` turns into our archives. A checksum is of the decompressed bytes of
a file, or of the arrays made from all files (`download.arrays_digest`), so it does not depend on compression.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_GITHUB = "https://raw.githubusercontent.com"
_PYMTL = "tjanez/PyMTL/970607e070b2a0d616d6c6248e6485b99cbb0d8c"
_FEW_SHOT = "Gorov/DiverseFewShot_Amazon/7417f3d7fec58a31150678213491cb4a2d290917"

SCHOOL_SPLITS = 10
# the rows, positive rows, and extra one-star reviews of each domain, which a conversion must give
MDS_DOMAINS: Mapping[str, tuple[int, int, int]] = {
    "apparel": (3330, 2603, 286),
    "automotive": (278, 192, 35),
    "baby": (1601, 1104, 199),
    "beauty": (1014, 771, 88),
    "books": (1764, 1448, 118),
    "camera_photo": (2347, 1843, 166),
    "cell_phones_service": (404, 200, 79),
    "computer_video_games": (842, 662, 48),
    "dvd": (1809, 1433, 133),
    "electronics": (1750, 1163, 239),
    "gourmet_food": (545, 437, 42),
    "grocery": (922, 741, 65),
    "health_personal_care": (2609, 1845, 284),
    "jewelry_watches": (722, 563, 62),
    "kitchen_housewares": (1492, 1067, 166),
    "magazines": (1278, 904, 105),
    "music": (1729, 1495, 74),
    "outdoor_living": (596, 415, 75),
    "software": (945, 472, 185),
    "sports_outdoors": (2069, 1508, 214),
    "toys_games": (4881, 3472, 554),
    "video": (1583, 1289, 88),
}
# domains without their training part; the counts above are without it too
MDS_WITHOUT_TRAIN = ("music", "video")


@dataclass(frozen=True)
class RemoteDataset:
    """The published files of one data set."""

    loader: str  # the public function that loads the data set
    mirrors: tuple[str, ...]  # base URLs, tried in turn; each one has all files
    files: Mapping[str, str | None]  # file -> SHA-256 of its decompressed bytes, if known
    arrays_sha256: str | None = None  # of the converted arrays, if the checksums of the files are not known


def mds_file(domain: str, threshold: int, part: str) -> str:
    return f"{domain}.t{threshold}.{part}"


def mds_parts(domain: str) -> tuple[str, ...]:
    return ("dev", "test") if domain in MDS_WITHOUT_TRAIN else ("train", "dev", "test")


REGISTRY: dict[str, RemoteDataset] = {
    "school.npz": RemoteDataset(
        "load_school",
        (f"{_GITHUB}/{_PYMTL}/data/school/",),
        dict.fromkeys(["school_b.mat", *(f"school_{k}_indexes.mat" for k in range(1, SCHOOL_SPLITS + 1))]),
        arrays_sha256="094c4a41df9552a78c4143bc4514111bdb894a1b1e646aa0bf372f7adb10c4da",
    ),
    "mnist.npz": RemoteDataset(
        "load_mnist_tasks",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ),
    # There is no known checksum of these texts: the URL names a commit, and the conversion compares row counts.
    "mds.npz": RemoteDataset(
        "load_mds",
        (f"{_GITHUB}/{_FEW_SHOT}/Amazon_few_shot/",),
        dict.fromkeys(mds_file(d, t, part) for d in MDS_DOMAINS for t in (4, 2) for part in mds_parts(d)),
    ),
}
