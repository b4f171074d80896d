"""Corruptions: held against the published definition by hand, and against what they promise."""

import colorsys
import hashlib
import os
import signal
import subprocess
import sys
import time
from functools import cache
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
import torch
from balcal.data.corruptions.kept import corrupted
from PIL import Image
from scipy import ndimage, stats
from shared_files import HELPERS, SHARED, skip_reason

from balcal.core import BalcalError
from balcal.data import corruptions
from balcal.data.catalog import digits, fashion
from balcal.data.corruptions import CORRUPTIONS, EXTRA, GROUPS, ROTATION, SEVERITIES, corrupt, kept
from balcal.data.corruptions.blur import disk, moved, sources, zoom_matrix
from balcal.data.corruptions.constants import CONSTANTS, SIDES
from balcal.data.corruptions.digital import elastic_transform, sampled
from balcal.data.corruptions.noise import Draws
from balcal.data.corruptions.weather import TINTS, edges, plasma, plates
from balcal.runtime.files import STALE

ALL = (*CORRUPTIONS, *EXTRA, ROTATION)
CIFAR = SHARED / "data" / "cifar10" / "test.webp"


def grey(n=12):
    return fashion()[1].images[:n].numpy()


def coloured(n=6):
    """Real images, one in each channel, 32 x 32."""
    three = np.pad(fashion()[1].images[: 3 * n, :, :, 0].numpy(), ((0, 0), (2, 2), (2, 2)))
    return np.ascontiguousarray(three.reshape(n, 3, 32, 32).transpose(0, 2, 3, 1))


@cache
def cifar(n):
    with Image.open(CIFAR) as mosaic:
        rows = np.asarray(mosaic.crop((0, 0, 3200, 32 * (n // 100))).convert("RGB"))
    return np.ascontiguousarray(rows.reshape(n // 100, 32, 100, 32, 3).swapaxes(1, 2).reshape(n, 32, 32, 3))


def distance(a, b):
    return np.abs(a.astype(float) - b).mean()


def test_names_are_the_published_ones_in_their_order():
    assert len(CORRUPTIONS) == 15
    assert CORRUPTIONS[:4] == ("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur")
    assert CORRUPTIONS[-2:] == ("pixelate", "jpeg_compression")
    assert set(ALL) == set(CONSTANTS) == set(corruptions._HOW)
    assert sum(GROUPS.values(), ()) == CORRUPTIONS
    for table in CONSTANTS.values():
        assert tuple(table) == SIDES
        assert all(len(row) == 5 for row in table.values())


@pytest.mark.parametrize("name", ALL)
def test_a_result_is_a_function_of_seed_image_number_kind_and_severity(name, monkeypatch):
    for images in (coloured(), grey(5)):
        for severity in (1, 3, 5):
            whole = corrupt(images, name, severity, seed=4)
            assert whole.dtype == np.uint8
            assert whole.shape == images.shape
            halves = [corrupt(images[:2], name, severity, 4), corrupt(images[2:], name, severity, 4, first=2)]
            assert np.array_equal(whole, np.concatenate(halves))
            singles = [corrupt(images[i : i + 1], name, severity, 4, first=i) for i in range(len(images))]
            assert np.array_equal(whole, np.concatenate(singles))
            with monkeypatch.context() as patch:
                patch.setattr(corruptions, "AT_ONCE", 3 * images[0].size)
                assert np.array_equal(whole, corrupt(images, name, severity, seed=4))
        random = name not in ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
        if random and name not in ("gaussian_blur", "saturate", "rotation"):
            assert not np.array_equal(whole, corrupt(images, name, 5, seed=5))
            same = corrupt(np.repeat(images[:1], 2, 0), name, 5)
            assert not np.array_equal(same[0], same[1]), "each image has chances of its own"


def test_threads_and_processes_do_not_matter():
    script = (
        "import hashlib, test_corruptions as t\n"
        "print(hashlib.sha256(b''.join(t.corrupt(t.coloured(3), n, 4).tobytes() for n in t.ALL)).hexdigest())"
    )
    here = hashlib.sha256(b"".join(corrupt(coloured(3), name, 4).tobytes() for name in ALL)).hexdigest()
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HELPERS), *sys.path])
    there = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


MEANS = {"gaussian_noise": 60.043, "shot_noise": 54.672, "impulse_noise": 57.328, "defocus_blur": 55.043,
         "glass_blur": 54.761, "motion_blur": 55.236, "zoom_blur": 63.177, "snow": 77.339, "frost": 115.132,
         "fog": 83.832, "brightness": 81.465, "contrast": 54.79, "elastic_transform": 53.498, "pixelate": 55.342,
         "jpeg_compression": 58.819, "speckle_noise": 54.695, "gaussian_blur": 55.014, "spatter": 61.831,
         "saturate": 52.424, "rotation": 55.278}  # fmt: skip


def test_results_move_only_with_the_version():
    """Other processors and other versions of libjpeg may round otherwise, by little."""
    assert corruptions.VERSION == 1
    for name, mean in MEANS.items():
        assert corrupt(coloured(6), name, 3).mean() == pytest.approx(mean, abs=0.1), name


def test_tensors_come_back_as_tensors():
    images = fashion()[1].images[:3]
    out = corrupt(images, "fog", 2)
    assert isinstance(out, torch.Tensor)
    assert np.array_equal(out.numpy(), corrupt(images.numpy(), "fog", 2))
    assert corrupt(images[:0], "fog", 2).shape == (0, 28, 28, 1)


NOT_GROWING = {
    "glass_blur": {(1, 2), (2, 3), (4, 5)},  # the same shuffling, then more smoothing, which mends some of it
    "motion_blur": {(3, 4)},  # the same sigma; only the far tail of the bell is cut off later
    "frost": {(3, 4), (4, 5)},  # as much ice, less of the image: less is too bright
    "elastic_transform": {(1, 2), (2, 3), (3, 4), (4, 5)},  # the affine part shrinks; see below for what grows
    "spatter": {(3, 4)},  # from water to mud, which covers less
    "saturate": {(2, 3)},  # from nearly grey to a little more colour than there was
    "rotation": {(2, 3), (4, 5)},  # a circle comes back to where it was
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("source", ["fashion", "cifar"])
def test_severity_grows_but_where_the_published_constants_say_otherwise(name, source):
    if source == "cifar" and not CIFAR.exists():
        pytest.skip(skip_reason(CIFAR))
    images = cifar(200) if source == "cifar" else grey(200)
    if name == "saturate" and source == "fashion":
        assert np.array_equal(corrupt(images, name, 5), images), "grey images have no colours"
        return
    far = [distance(corrupt(images, name, severity), images) for severity in SEVERITIES]
    assert far[0] > 0.5
    for severity in (1, 2, 3, 4):
        if (severity, severity + 1) not in NOT_GROWING.get(name, ()):
            assert far[severity] > far[severity - 1], far
    if name != "elastic_transform":
        assert far[4] > far[0]


def test_what_grows_in_elastic_is_the_local_displacement():
    """Deviation in pixels of what moves a pixel differently from its surroundings."""
    ramp = np.broadcast_to(np.arange(32, dtype=np.uint8)[:, None, None] * 8, (40, 32, 32, 1))
    rough = []
    for severity in SEVERITIES:
        strength, sigma, _ = CONSTANTS["elastic_transform"][32][severity - 1]
        rows = elastic_transform(ramp, (strength, sigma, 0), Draws(0, 0, 40))[:, 8:24, 8:24] / 8
        rough.append((rows - rows.mean(0)).std())
    assert rough[0] == 0
    assert all(a < b for a, b in pairwise(rough)), rough


@pytest.mark.parametrize("name", ALL)
def test_other_sizes_and_shapes(name):
    small, oblong = digits()[1].images[:4].numpy(), coloured(2)[:, :, :28]
    for images in (small, oblong):
        out = corrupt(images, name, 5)
        assert out.shape == images.shape
        assert out.dtype == np.uint8


@pytest.mark.parametrize("side", [64, 224])
def test_larger_images_get_their_own_constants(side):
    images = np.stack(
        [np.asarray(Image.fromarray(x).resize((side, side), Image.Resampling.BICUBIC)) for x in coloured(2)]
    )
    for name in ALL:
        severity = 3 if name == "elastic_transform" else 5
        out = corrupt(images, name, severity)
        assert out.shape == images.shape
        assert distance(out, images) > 0.5
        if name in ("contrast", "jpeg_compression"):
            wrong = corruptions.corrupt_with(images, name, CONSTANTS[name][32][4], 0)
            assert not np.array_equal(out, wrong)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_has_the_published_moments(severity):
    """On one grey level, far from black and white; cutting off fractions costs half a level."""
    level, count = 100, 120
    flat = np.full((count, 32, 32, 3), level, np.uint8)
    n = flat.size

    def moments(name):
        out = corrupt(flat, name, severity).astype(float)
        return out.mean(), out.std()

    constant = {name: CONSTANTS[name][32][severity - 1] for name in CONSTANTS}
    mean, deviation = moments("gaussian_noise")
    assert mean == pytest.approx(level - 0.5, abs=5 * deviation / n**0.5)
    assert deviation == pytest.approx((255**2 * constant["gaussian_noise"] ** 2 + 1 / 12) ** 0.5, rel=0.01)
    mean, deviation = moments("speckle_noise")
    assert deviation == pytest.approx((level**2 * constant["speckle_noise"] ** 2 + 1 / 12) ** 0.5, rel=0.01)
    mean, deviation = moments("shot_noise")
    photons = np.arange(2 * constant["shot_noise"])
    chance = stats.poisson.pmf(photons, level * constant["shot_noise"] / 255)
    levels = np.minimum(np.floor(photons * 255 / constant["shot_noise"] + 1e-3), 255)
    assert mean == pytest.approx(chance @ levels, abs=5 * deviation / n**0.5)
    assert deviation == pytest.approx((chance @ levels**2 - (chance @ levels) ** 2) ** 0.5, rel=0.01)
    assert deviation == pytest.approx((level * 255 / constant["shot_noise"]) ** 0.5, rel=0.03)
    struck = corrupt(flat, "impulse_noise", severity)
    share = constant["impulse_noise"]
    for value in (0, 255):
        assert (struck == value).mean() == pytest.approx(share / 2, abs=5 * (share / 2 / n) ** 0.5)
    assert set(np.unique(struck)) == {0, level, 255}


@pytest.mark.parametrize("side", SIDES)
def test_kernels_sum_to_one_and_leave_flat_images_alone(side):
    flat = np.full((1, 32, 32, 3), 77, np.uint8)
    for severity in SEVERITIES:
        constant = {name: CONSTANTS[name][side][severity - 1] for name in CONSTANTS}
        kernel = disk(*constant["defocus_blur"])
        assert kernel.sum() == pytest.approx(1, abs=1e-12)
        assert np.allclose(kernel, kernel.T)
        assert np.asarray(zoom_matrix(32, 32, constant["zoom_blur"]).sum(1)).ravel() == pytest.approx(1, abs=1e-5)
        for name in ("defocus_blur", "gaussian_blur", "zoom_blur", "motion_blur", "glass_blur", "contrast"):
            assert np.array_equal(corruptions.corrupt_with(flat, name, constant[name], 0), flat), name


def test_gaussian_and_defocus_by_hand():
    image = coloured(1)
    sigma = CONSTANTS["gaussian_blur"][32][4]
    wanted = ndimage.gaussian_filter(image[0].astype(float), (sigma, sigma, 0), mode="nearest", truncate=4)
    assert np.abs(corrupt(image, "gaussian_blur", 5)[0] - np.floor(wanted + 1e-3)).max() <= 1
    kernel = disk(*CONSTANTS["defocus_blur"][32][4])
    wanted = ndimage.correlate(image[0].astype(float), kernel[..., None], mode="mirror")
    assert np.abs(corrupt(image, "defocus_blur", 5)[0] - np.floor(wanted + 1e-3)).max() <= 1


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_goes_through_the_pixels_in_the_published_order(reach):
    """The loop as it is published, views of one array on both sides of the assignment."""
    got = sources(16, 14, reach, Draws(3, 0, 5))
    step = Draws(3, 0, 5).below(2 * reach, 2, 16, 14) - reach
    for i in range(5):
        pixels = np.arange(16 * 14).reshape(16, 14, 1).copy()
        for h in range(16 - reach, reach, -1):
            for w in range(14 - reach, reach, -1):
                h2, w2 = h + step[i, 0, h, w], w + step[i, 1, h, w]
                pixels[h, w], pixels[h2, w2] = pixels[h2, w2], pixels[h, w]
        assert np.array_equal(got[i], pixels.ravel())


def test_motion_is_imagemagick_s_pixel_by_pixel():
    image, radius, sigma = coloured(1), 6, 2.0
    for angle in (-41.0, 0.0, 17.0, -100.0):
        weights = np.exp(-(np.arange(13) ** 2) / (2 * sigma**2))
        weights /= weights.sum()
        wanted = np.zeros((32, 32, 3))
        for i, weight in enumerate(weights):
            down = int(np.ceil(i * np.sin(np.deg2rad(angle)) - 0.5))
            right = int(np.ceil(i * np.cos(np.deg2rad(angle)) - 0.5))
            for y in range(32):
                for x in range(32):
                    wanted[y, x] += weight * image[0, min(max(y + down, 0), 31), min(max(x + right, 0), 31)]
        got = moved(image, radius, sigma, np.array([angle], np.float32))[0]
        assert np.abs(got - wanted).max() <= 0.501


def test_zoom_blur_is_the_mean_of_scipy_s_zooms():
    image = coloured(1)[0].astype(np.float32)
    total = image.copy()
    for factor in CONSTANTS["zoom_blur"][32][2]:
        kept_side = int(np.ceil(32 / factor))
        top = (32 - kept_side) // 2
        large = ndimage.zoom(image[top : top + kept_side, top : top + kept_side], (factor, factor, 1), order=1)
        trim = (len(large) - 32) // 2
        total += large[trim : trim + 32, trim : trim + 32]
    total /= len(CONSTANTS["zoom_blur"][32][2]) + 1
    assert np.abs(corrupt(image[None].astype(np.uint8), "zoom_blur", 3)[0] - np.floor(total + 1e-3)).max() <= 1


def test_clouds_are_diamonds_and_squares():
    """Every point is the mean of its four neighbours, which wrap around, and its own chance."""
    side, decay = 8, 2.0
    chance = Draws(1, 0, 2).between(-1, 1, side, side).astype(float)
    for i in range(2):
        height, step, amplitude = {(0, 0): 0.0}, side, 100.0
        while step >= 2:
            half = step // 2
            rings = (
                [((y + half, x + half), half, "x") for y in range(0, side, step) for x in range(0, side, step)],
                [((y, x + half), half, "+") for y in range(0, side, step) for x in range(0, side, step)]
                + [((y + half, x), half, "+") for y in range(0, side, step) for x in range(0, side, step)],
            )
            for ring in rings:
                for (y, x), d, shape in ring:
                    near = [(-d, -d), (-d, d), (d, -d), (d, d)] if shape == "x" else [(-d, 0), (d, 0), (0, -d), (0, d)]
                    mean = sum(height[(y + a) % side, (x + b) % side] for a, b in near) / 4
                    height[y, x] = mean + amplitude**2 * chance[i, y, x]
            step, amplitude = half, amplitude / decay
        wanted = np.array([[height[y, x] for x in range(side)] for y in range(side)])
        wanted = (wanted - wanted.min()) / (wanted.max() - wanted.min())
        assert plasma(side, decay, Draws(1, 0, 2))[i] == pytest.approx(wanted, abs=1e-4)


def test_fog_keeps_the_brightest_value_below_what_it_was():
    images = np.minimum(coloured(4), 200)
    out = corrupt(images, "fog", 5)
    assert (out.max((1, 2, 3)) <= images.max((1, 2, 3))).all()
    assert not corrupt(np.zeros((1, 32, 32, 3), np.uint8), "fog", 5).any()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_and_saturation_are_those_of_hsv(severity):
    pixels = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3)).astype(np.uint8)
    pixels[0, 0, :3] = [[0, 0, 0], [90, 90, 90], [255, 255, 255]]
    more = CONSTANTS["brightness"][32][severity - 1]
    factor, plus = CONSTANTS["saturate"][32][severity - 1]
    bright, vivid = corrupt(pixels, "brightness", severity)[0], corrupt(pixels, "saturate", severity)[0]
    for y, x in np.ndindex(16, 16):
        h, s, v = colorsys.rgb_to_hsv(*(pixels[0, y, x] / 255))
        wanted = np.array(colorsys.hsv_to_rgb(h, s, min(v + more, 1))) * 255
        assert np.abs(bright[y, x] - wanted).max() <= 1.001
        wanted = np.array(colorsys.hsv_to_rgb(h, min(s * factor + plus, 1), v)) * 255
        assert np.abs(vivid[y, x] - wanted).max() <= 1.001


def test_contrast_by_hand():
    image = coloured(1)
    mean = image[0].mean((0, 1))
    wanted = np.floor((image[0] - mean) * 0.15 + mean + 1e-3)
    assert np.array_equal(corrupt(image, "contrast", 5)[0], wanted)


@pytest.mark.parametrize("edge", ["mirror", "reflect"])
def test_sampling_between_pixels_is_scipy_s(edge):
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (3, 9, 11, 2)).astype(np.float32)
    rows, columns = rng.uniform(-12, 20, (3, 9, 11)), rng.uniform(-12, 22, (3, 9, 11))
    got = sampled(images, rows, columns, edge)
    for i, k in np.ndindex(3, 2):
        wanted = ndimage.map_coordinates(images[i, ..., k], [rows[i], columns[i]], order=1, mode=edge)
        assert got[i, ..., k] == pytest.approx(wanted, abs=1e-2)


def test_elastic_takes_the_three_points_where_they_were_sent():
    """Without displacement it is the affine map that takes three corners of the middle square to their new places."""
    y, x = np.mgrid[:32, :32]
    ramps = np.stack([4 * y, 4 * x, 0 * x], -1)[None].astype(np.uint8)
    out = elastic_transform(ramps, (0, 0, 2.0), Draws(5, 0, 1))[0] / 4
    corners = np.array([[26, 26], [26, 6], [6, 6]])
    there = corners + Draws(5, 0, 1).between(-2, 2, 3, 2)[0]
    for corner, place in zip(corners, there, strict=True):
        for k in (0, 1):
            value = ndimage.map_coordinates(out[..., k], place[:, None], order=1)
            assert value == pytest.approx(corner[k], abs=1e-3)


@pytest.mark.parametrize("images", [coloured(3), grey(3)], ids=["colour", "grey"])
def test_jpeg_and_pixelate_are_pillow_s(images):
    for i, image in enumerate(images):
        picture = Image.fromarray(image.squeeze())
        side = len(image)
        file = BytesIO()
        picture.save(file, "JPEG", quality=40)
        assert np.array_equal(corrupt(images, "jpeg_compression", 5)[i].squeeze(), np.asarray(Image.open(file)))
        small = picture.resize((int(side * 0.65),) * 2, Image.Resampling.BOX)
        wanted = np.asarray(small.resize((side, side), Image.Resampling.BOX))
        assert np.array_equal(corrupt(images, "pixelate", 5)[i].squeeze(), wanted)


def test_snow_falls_as_bright_on_both_halves():
    """Flakes come with the same flakes turned by 180 degrees; on black, what is not snow is the whitening alone."""
    black = np.zeros((8, 32, 32, 3), np.uint8)
    out = corrupt(black, "snow", 4)
    assert np.array_equal(out, out[:, ::-1, ::-1])
    assert out.min() == int(0.15 * 127.5)
    assert out.max() > 100


def test_frost_is_weighted_ice_with_the_figures_of_the_photographs():
    for number, (mean, deviation, _) in enumerate(TINTS):
        for scale in (0.2, 0.3, 1):
            assert plates(scale)[number].mean((0, 1)) == pytest.approx(np.array(mean), abs=2)
            assert plates(scale)[number].std((0, 1)) == pytest.approx(np.array(deviation), abs=2)
    ice = corrupt(np.zeros((300, 32, 32, 3), np.uint8), "frost", 5).astype(float)
    assert ice.mean((0, 1, 2)) == pytest.approx(0.45 * np.mean([mean for mean, _, _ in TINTS], 0) - 0.5, abs=3)


def test_edges_of_a_square_are_its_rim():
    image = np.zeros((2, 16, 16), np.uint8)
    image[0, 4:12, 4:12] = 200
    found = edges(image, 50, 150)
    assert not found[1].any(), "edges stay in their image"
    wanted, inner = np.zeros((16, 16), bool), np.zeros((16, 16), bool)
    wanted[3:13, 3:13], inner[5:11, 5:11] = True, True
    assert not (found[0] & ~wanted).any()
    assert not (found[0] & inner).any()
    assert found[0].sum() >= 24


def test_rotation_is_counter_clockwise_about_the_centre():
    images = coloured(3)
    assert np.array_equal(corrupt(images, ROTATION, 3), np.rot90(images, 1, (1, 2)))
    assert np.array_equal(corrupt(images, ROTATION, 5), np.rot90(images, 2, (1, 2)))
    mean = (125, 123, 114)
    for severity, degrees in ((1, 10), (2, 45), (4, 135)):
        wanted = [np.asarray(Image.fromarray(x).rotate(degrees, fillcolor=mean)) for x in images]
        assert (corrupt(images, ROTATION, severity) == np.stack(wanted)).mean() > 0.98, "they round at ties otherwise"


def test_mistakes_are_answered_in_one_sentence():
    images = grey(2)
    with pytest.raises(BalcalError, match="unknown corruption `gausian_noise`; did you mean `gaussian_noise`\\?"):
        corrupt(images, "gausian_noise", 1)
    for severity in (0, 6, 2.5, True):
        with pytest.raises(BalcalError, match=f"severity must be 1, 2, 3, 4 or 5, not {severity}"):
            corrupt(images, "fog", severity)
    for wrong in (images / 255, images[..., 0], np.repeat(images, 2, -1), torch.zeros(2, 3, 32, 32)):
        with pytest.raises(BalcalError, match=r"corruptions need bytes \(N, H, W, C\) with one or three channels, not"):
            corrupt(wrong, "fog", 1)
    with pytest.raises(BalcalError, match="images of 4 x 28 pixels are too small to corrupt"):
        corrupt(images[:, :4], "fog", 1)


def test_kept_results_are_found_again(tmp_path, monkeypatch):
    images = grey()
    first = corrupted(images, "snow", 2, 0, tmp_path)
    assert isinstance(first, np.memmap)
    assert np.array_equal(first, corrupt(images, "snow", 2, 0))
    (file,) = tmp_path.iterdir()
    assert np.array_equal(np.load(file), first), "a file that anybody can read"
    monkeypatch.setattr(kept, "corrupt", lambda *_: pytest.fail("it was there already"))
    assert np.array_equal(corrupted(torch.from_numpy(images), "snow", 2, 0, tmp_path), first)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0


def test_other_questions_have_other_files(tmp_path, monkeypatch):
    images = grey(3)
    changed = images.copy()
    changed[2, 0, 0] += 1
    for asked in ((images, "fog", 1, 0), (images, "fog", 2, 0), (images, "fog", 1, 1), (images, "snow", 1, 0),
                  (changed, "fog", 1, 0), (images[:2], "fog", 1, 0)):  # fmt: skip
        assert np.array_equal(corrupted(*asked, tmp_path), corrupt(*asked))
    assert len(list(tmp_path.iterdir())) == 6
    monkeypatch.setattr(kept, "VERSION", 99)
    corrupted(images, "fog", 1, 0, tmp_path)
    assert len(list(tmp_path.iterdir())) == 7


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "header"])
def test_damaged_files_are_noticed_and_made_anew(damage, tmp_path):
    images = grey(3)
    corrupted(images, "contrast", 3, 0, tmp_path)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[-1000] ^= 1
    elif damage == "header":
        content[0] ^= 1
    else:
        del content[0 if damage == "empty" else len(content) // 2 :]
    file.write_bytes(content)
    assert np.array_equal(corrupted(images, "contrast", 3, 0, tmp_path), corrupt(images, "contrast", 3, 0))
    assert len(list(tmp_path.iterdir())) == 1


def test_killed_half_way_it_leaves_nothing_that_looks_whole(tmp_path):
    script = (
        "import sys, time\nfrom pathlib import Path\nimport test_corruptions as t\n"
        "t.kept.AT_ONCE, whole = 200, t.corrupt\n"
        "def slow(*asked):\n    print('part', flush=True)\n"
        "    time.sleep(0.05 if asked[-1] < 4 else 60)\n    return whole(*asked)\n"
        "t.kept.corrupt = slow\n"
        "t.corrupted(t.grey(12), 'fog', 1, 0, Path(sys.argv[1]))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    ) as child:
        while child.stdout.readline():
            debris = list(tmp_path.iterdir())
            if debris and debris[0].name.startswith(".unfinished-"):
                break
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert not list(tmp_path.glob("fog*"))
    assert np.array_equal(corrupted(grey(12), "fog", 1, 0, tmp_path), corrupt(grey(12), "fog", 1, 0))
    (file,) = tmp_path.glob("fog*")
    file.unlink()
    for left in tmp_path.iterdir():  # swept once nobody can be at work on it any more, at the latest after a day
        os.utime(left, (time.time() - 2 * STALE,) * 2)
    corrupted(grey(12), "fog", 1, 0, tmp_path)
    assert [path.name[:3] for path in tmp_path.iterdir()] == ["fog"]


def test_an_error_on_the_way_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kept, "corrupt", fails)
    with pytest.raises(KeyboardInterrupt):
        corrupted(grey(3), "fog", 1, 0, tmp_path)
    assert not list(tmp_path.iterdir())
