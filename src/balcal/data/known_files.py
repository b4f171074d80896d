"""The files of each data set: names in every form, download addresses, checksums.

Checksums are MD5 where the authors (or Zenodo) publish MD5, SHA-256 for the mosaics.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from balcal.data import cifar, image_folders, svhn, text
from balcal.data.dataset import Parts
from balcal.data.download import Download
from balcal.data.locate import Form, StoredFiles

KRIZ = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
"""two addresses of one server: the second is where the university moved it"""


def _kriz(name: str, md5: str) -> tuple[Download, ...]:
    return (Download(name, tuple(base + name for base in KRIZ), f"md5:{md5}"),)


def _files(kind: str, checksums: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, checksum and f"{kind}:{checksum}") for name, checksum in checksums.items())


def _without_checksums(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "") for name in names)


CIFAR10: StoredFiles[Parts] = StoredFiles(
    "cifar10",
    (
        Form(
            "cifar-10-batches-py",
            _files(
                "md5",
                {
                    "data_batch_1": "c99cafc152244af753f735de768cd75f",
                    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                    "data_batch_4": "634d18415352ddfa80567beed471001a",
                    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                    "test_batch": "40351d587109b95175f43aff81a1287e",
                },
            ),
            cifar.batches_py,
            _kriz("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        ),
        Form(
            "cifar-10-batches-bin",
            _without_checksums(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
            cifar.batches_bin,
            _kriz("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        ),
        Form(
            "cifar10",
            _files(
                "sha256",
                {
                    "train-1.webp": "33ee1170f92bf498b555fd84884f47b0fd5cf861cd8906ba0494510ca02d8860",
                    "train-2.webp": "f0cd79b244135a07833be96f5a711f71baf12b52ebbb0558a5e2b87a0fb99d41",
                    "train-3.webp": "0fc8b7a37cf952720a4edb4401b27e0ac02fc6d8ec3b7a3fc7e7065e74fb0ea8",
                    "train-4.webp": "3b94be3871dce4b7effe0bd85d7fea95d53946968481a5d323db7a3fbeb0ea3e",
                    "train-5.webp": "864b5f2f1384951903533f09e5daec38734f154bc6ec7267a7e8fb6008e3942d",
                    "test.webp": "1925251749113162ebc2866d7e46840a66fa4573713aa743599fd9d0370e7362",
                    "labels.npz": "b378158dd26d894336bd987b45841d5040553f03491da777b86bbf5d74da4e25",
                },
            ),
            cifar.mosaics,
        ),
    ),
    sizes=(50_000, 10_000),
)

CIFAR100: StoredFiles[Parts] = StoredFiles(
    "cifar100",
    (
        Form(
            "cifar-100-python",
            _files(
                "md5",
                {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            ),
            cifar.cifar100_py,
            _kriz("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
        ),
        Form(
            "cifar-100-binary",
            _files(
                "md5",
                {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
            ),
            cifar.cifar100_bin,
            _kriz("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
        ),
        Form(
            "cifar100",
            _files(
                "sha256",
                {
                    "train-1.jpg": "b76fcd7ba8399b2190810fe5124e5879a0da26147df014528d5fa75d3130f3c8",
                    "train-2.jpg": "ca1dcb83093cda5f367a1689c95ae9ea994ca571ea6de6ce5de76090d40b80b3",
                    "train-3.jpg": "0aa00f81ce3cc7802eeaf2378c408f0aa161d9981f00e4f4fc3947bf78500146",
                    "train-4.jpg": "f5ee4049e8b8d2b02b45056c23f49bc41e70a8416f202771e1ae968c0c3518ad",
                    "train-5.jpg": "e72bbeaa0cdb7ca7f9946c43f891fec465771e75c799dde58184b885ae0e1bf6",
                    "test.webp": "0588fd527b48bf80c46bd6fa1459fc98024cf68f6781298036f8f87f89965303",
                    "labels.npz": "0b40560e36e621a9296af9a92b469bdd4d6c7370e8440ed5cba330776d403b16",
                },
            ),
            cifar.mosaics,
        ),
    ),
    sizes=(50_000, 10_000),
)

CIFAR10H: StoredFiles[NDArray[np.float64]] = StoredFiles(
    "cifar10h",
    (
        Form(
            "cifar10h",
            _files("sha256", {"cifar10h.npz": "81ada123a282e83bc1fa24707082939c492f65f7c4df74c1815e8f5c71309b1e"}),
            cifar.read_votes,
        ),
        Form("cifar-10h/data", _without_checksums("cifar10h-counts.npy"), cifar.read_votes),
    ),
    terms="clone https://github.com/jcpeterson/cifar-10h, or ",
)

CIFAR10N: StoredFiles[dict[str, NDArray[np.int64]]] = StoredFiles(
    "cifar10n",
    (
        Form(
            "cifar10n",
            _files("sha256", {"cifar10n.npz": "b623f628293f4509c91397735220e3c67b4362699adad568e5f23d7dacbc4760"}),
            cifar.read_noisy,
        ),
        Form("cifar-10-100n/data", _without_checksums("CIFAR-10_human.pt"), cifar.read_noisy),
    ),
    terms="clone https://github.com/UCSC-REAL/cifar-10-100n, or ",
)

HOUSE_NUMBERS = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
SVHN: StoredFiles[Parts] = StoredFiles(
    "svhn",
    (
        *(
            Form(
                folder,
                _files("md5", HOUSE_NUMBERS),
                svhn.cropped,
                tuple(
                    Download(name, (f"http://ufldl.stanford.edu/housenumbers/{name}",), f"md5:{md5}")
                    for name, md5 in HOUSE_NUMBERS.items()
                ),
            )
            for folder in (".", "svhn")
        ),
        Form(
            "svhn",
            _files(
                "sha256",
                {
                    "train-1.jpg": "f9b4ac21a75f20a1fe3ee4a8198529fbd977fd2a88db43f3b7a00e5de6f611ec",
                    "train-2.jpg": "f1fb9a4a030be0726487648c5508cec2ea17363a982c89c22332d64a387ff7eb",
                    "train-3.jpg": "f9a40358a0940ae6586d2196bf2be41f4c2d2698675184e6c2bc19158bcc9ee4",
                    "train-4.jpg": "5dcfc16f7856c18d91fe59b40aaeaac1f309a2ec7a73d500ce0975be716133a7",
                    "train-5.jpg": "947cf68564833b3713d2f1eaf70111d85e1193e2d6c1820a736736be997f7faa",
                    "train-6.jpg": "ef83fe4e08cc93026d80fc48edc8adfd4701ca1f64ad6be5241476c21739a700",
                    "train-7.jpg": "93e278aa39aef7f954023c21551c91fc9dce2977f6c7756dedf90a11c20c676f",
                    "train-8.jpg": "d56f2ca842cd0f29f83548458567e4789d3c98d1d25f5dfa490b36c188ee88bf",
                    "test-1.webp": "f02943d59b7dd67a0c9882d7286cb1a1dc871c0f4a67edd66905a08bfae79197",
                    "test-2.webp": "806e5253e5346eb1d0f05df2602a340ab1cd2a5238d7478a46a6314829a9a318",
                    "test-3.webp": "dd79d89bee38788f15841b47db82b310e9ac54d1c1c2c671c1a3d889fdad0fd6",
                    "labels.npz": "3d7d863ff792ba3ecffc24dc2e539e7581002eb5fe23dcf9f8ac59214d9b6053",
                },
            ),
            cifar.mosaics,
            title="SVHN, rebuilt",
        ),
    ),
    sizes=(73_257, 26_032),
)

TINY_IMAGENET: StoredFiles[Parts] = StoredFiles(
    "tiny-imagenet",
    (
        Form(
            "tiny-imagenet-200",
            _without_checksums("wnids.txt", "words.txt", "train", "val"),
            image_folders.tiny_imagenet,
            (
                Download(
                    "tiny-imagenet-200.zip",
                    (
                        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                        "https://zenodo.org/records/10720917/files/tiny-imagenet-200.zip",
                    ),
                    "md5:90528d7ca1a48142e341f4ef8d21d0de",
                ),
            ),
        ),
    ),
    sizes=(100_000, 10_000),
)

IMAGENET: StoredFiles[Parts] = StoredFiles(
    "imagenet",
    tuple(
        Form(folder, _without_checksums("train", "val"), partial(image_folders.imagenet, side=224))
        for folder in ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")
    ),
    sizes=(1_281_167, 50_000),
    terms="register at https://image-net.org, unpack the training and the validation archive, and ",
)

TEXTURES: StoredFiles[Parts] = StoredFiles(
    "textures",
    (
        Form(
            "textures32",
            _files(
                "sha256",
                {
                    "textures.webp": "3aedaf4356d7110f57d237880702d368b3626a67e299181f5c6523880937109d",
                    "labels.npz": "a07bf4161a7b115fec98de9593b4d9f058aa2cf396f0c7f97e0c781a5376955a",
                },
            ),
            cifar.textures,
        ),
    ),
    sizes=(0, 1_200),
)

_CLINC150 = _files("sha256", {"data_full.json.gz": "01cce723a1b3a2a342158c5b4545e5255bc167fa6037c8a827b1908e504a9014"})
CLINC: StoredFiles[Parts] = StoredFiles("clinc", (Form("clinc150", _CLINC150, text.clinc),), sizes=(18_000, 4_500))
CLINC_OOS: StoredFiles[Parts] = StoredFiles(
    "clinc-oos", (Form("clinc150", _CLINC150, text.clinc_out_of_scope),), sizes=(0, 1_000)
)
