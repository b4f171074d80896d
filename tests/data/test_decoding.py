"""Image files are read rightly, or refused in a sentence that names them; none of them starts or stalls anything."""

import io
import os
import socket
import struct
import zlib

import numpy as np
import pytest
from data_files import class_folders, data_folder, images, png
from PIL import EpsImagePlugin, Image

from balcal.core import BalcalError
from balcal.data.decoding import decode_image, read_mosaic
from balcal.registry import dataset

__all__ = ["data_folder"]


def saved(path, array, **how):
    Image.fromarray(array).save(path, **how)
    return path


@pytest.mark.parametrize("name", ["grey.png", "grey.tif", "grey.ppm"])
def test_grey_of_16_bits_keeps_its_upper_byte(name, tmp_path):
    grey = np.random.default_rng(0).integers(65536, size=(8, 8), dtype=np.uint16)
    seen = decode_image(saved(tmp_path / name, grey), 8)
    assert np.array_equal(seen, np.repeat((grey >> 8)[..., None], 3, 2))


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_of(rows, depth=8, colour=2, size=(8, 8)):
    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_colours_of_16_bits_keep_their_upper_bytes(tmp_path):
    colours = np.random.default_rng(0).integers(65536, size=(8, 8, 3)).astype(">u2")
    (tmp_path / "deep.png").write_bytes(png_of(b"".join(b"\0" + row.tobytes() for row in colours), depth=16))
    assert np.array_equal(decode_image(tmp_path / "deep.png", 8), colours >> 8)


@pytest.mark.parametrize("kind", ["float32", "int32", "int16", "int8", "white is zero", "12 bits", "see-through"])
def test_pixels_without_an_agreed_range_are_refused(kind, tmp_path):
    path, ramp = tmp_path / "odd.tif", np.arange(64, dtype=np.uint16).reshape(8, 8)
    if kind in ("float32", "int32"):
        saved(path, ramp.astype(kind))
    elif kind in ("int16", "int8"):
        saved(path, ramp.astype("u" + kind), tiffinfo={339: 2})
    elif kind == "see-through":
        path = saved(tmp_path / "odd.png", ramp, transparency=0)
    else:
        saved(path, ramp)
        tag, old, new = (262, 1, 0) if kind == "white is zero" else (258, 16, 12)
        entry = struct.pack("<HHI", tag, 3, 1)
        assert entry + struct.pack("<I", old) in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(entry + struct.pack("<I", old), entry + struct.pack("<I", new)))
    with pytest.raises(ValueError, match=rf"{path.name} cannot be read: .*(save it with 8|cut off|truncated)"):
        decode_image(path, 8)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
def test_other_kinds_of_eight_bits_are_right(mode, tmp_path):
    x = images(1, 8)[0] // 128 * 255  # colours that each of them can express
    if mode in ("1", "L"):
        x = np.repeat(x[..., :1], 3, 2)
    Image.fromarray(x).convert(mode).save(tmp_path / "x.tif")
    assert np.abs(decode_image(tmp_path / "x.tif", 8).astype(int) - x).max() <= 2


@pytest.mark.parametrize("name", ["see-through.png", "see-through.webp", "palette.png", "palette.gif", "grey.png"])
def test_what_is_transparent_is_put_on_white(name, tmp_path):
    """Whatever colour is hidden there; half transparent is half white."""
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:4] = (40, 40, 40, 255)
    image, how = Image.fromarray(pixels), {"lossless": True} if name.endswith("webp") else {}
    if name.startswith("palette"):
        image = Image.fromarray((pixels[..., 3] // 255).astype(np.uint8), "L").convert("P")
        image.putpalette([0, 0, 0, 40, 40, 40])
        how = {"transparency": 0}
    if name.startswith("grey"):
        image = image.convert("LA")
    image.save(tmp_path / name, **how)
    seen = decode_image(tmp_path / name, 8)
    assert (seen[:4] == 40).all()
    assert (seen[4:] == 255).all()
    pixels[4:] = (0, 0, 0, 128)
    Image.fromarray(pixels).save(tmp_path / "half.png")
    assert (np.abs(decode_image(tmp_path / "half.png", 8)[4:].astype(int) - 127) <= 1).all()


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("side", [1, 5, 8, 33])
def test_whole_pngs_pass(side, interlaced, tmp_path):
    x = images(1, side)[0]
    content = png(x)
    if interlaced:  # what Pillow cannot write: each pass is an image of its own
        passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
        rows = b"".join(
            b"\0" + row.tobytes() for left, top, right, down in passes for row in x[top::down, left::right] if row.size
        )
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 1)
        packed = zlib.compress(rows)
        middle = len(packed) // 2
        parts = (b"IHDR", header), (b"IDAT", packed[:middle]), (b"IDAT", packed[middle:]), (b"IEND", b"")
        content = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
    (tmp_path / "x.png").write_bytes(content)
    assert np.array_equal(decode_image(tmp_path / "x.png", side), x)


def test_pngs_of_every_depth_pass(tmp_path):
    x = images(1, 9)[0]
    for name, image in {
        "1": Image.fromarray(x).convert("1"),
        "16 colours": Image.fromarray(x).quantize(16),
        "grey": Image.fromarray(x[..., 0]),
        "alpha": Image.fromarray(x).convert("RGBA"),
    }.items():
        image.save(tmp_path / "x.png")
        assert np.array_equal(decode_image(tmp_path / "x.png", 9), np.asarray(image.convert("RGB"))), name


def test_images_with_missing_or_damaged_rows_are_refused(tmp_path):
    x = images(1, 8)[0]
    rows = b"".join(b"\0" + row.tobytes() for row in x)
    whole = png_of(rows)
    tall = io.BytesIO()
    Image.fromarray(x).save(tall, "TIFF")
    height = struct.pack("<HHI", 257, 4, 1) + struct.pack("<I", 8)
    content = {
        "short.png": png_of(rows[: len(rows) // 2]),
        "nothing.png": png_of(b""),
        "cut.png": whole[: len(whole) // 2],
        "flipped.png": whole[:60] + bytes([whole[60] ^ 1]) + whole[61:],
        "short.tif": tall.getvalue().replace(height, height[:8] + struct.pack("<I", 16)),
        "empty.jpg": b"",
        "not.jpg": b"not an image",
    }
    assert content["short.tif"] != tall.getvalue()
    for name, raw in content.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(ValueError, match=rf"the image .*{name} cannot be read: "):
            decode_image(tmp_path / name, 8)


def test_a_folder_says_which_image_is_cut_off(data_folder):
    x = class_folders(data_folder / "pets", side=8)
    rows = b"".join(b"\0" + row.tobytes() for row in x[3][:5])
    (data_folder / "pets" / "cat" / "003.png").write_bytes(png_of(rows))
    with pytest.raises(BalcalError, match=r"003.png cannot be read: it is cut off: 75 of 200 bytes"):
        dataset(f"folder:{data_folder / 'pets'}")


@pytest.mark.parametrize("name", ["000.png", "005.png"])
def test_a_decompression_bomb_is_a_sentence(name, data_folder):
    """As a class's first image, whose size is looked at, and anywhere else."""
    class_folders(data_folder / "pets", side=8)
    kind = {"000.png": "cat", "005.png": "fox"}[name]
    (data_folder / "pets" / kind / name).write_bytes(png_of(b"", size=(100_000, 100_000)))
    with pytest.raises(BalcalError, match=rf"{name} cannot be read: .*exceeds limit"):
        dataset(f"folder:{data_folder / 'pets'}")
    with pytest.raises(BalcalError, match=rf"{name} cannot be read: .*exceeds limit"):
        dataset(f"folder:{data_folder / 'pets'}@8")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder", "nothing"])
@pytest.mark.parametrize("side", ["", "@8"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(kind, side, data_folder, tmp_path, monkeypatch):
    class_folders(data_folder / "pets", side=8)
    path = data_folder / "pets" / "cat" / "000.png"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(path.parent)  # such names must be short
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else tmp_path / "nowhere")
    with pytest.raises(BalcalError, match=r"000.png cannot be read: .*(it is no regular file|No such file)"):
        dataset(f"folder:{data_folder / 'pets'}{side}")


@pytest.mark.timeout(60)
def test_a_pipe_is_no_file_of_arrays(data_folder):
    os.mkfifo(data_folder / "a.npz")
    with pytest.raises(BalcalError, match=r"a.npz is no regular file"):
        dataset(f"npz:{data_folder / 'a.npz'}")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def test_postscript_under_another_name_starts_nothing(data_folder, tmp_path, monkeypatch):
    class_folders(data_folder / "pets", side=8)
    (data_folder / "pets" / "dog" / "004.png").write_bytes(POSTSCRIPT)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gs").write_text(f"#!/bin/sh\necho $@ >> {tmp_path / 'started'}\n")
    (tmp_path / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it is looked for once
    with pytest.raises(BalcalError, match=r"004.png cannot be read: it is no whole JPEG, PNG"):
        dataset(f"folder:{data_folder / 'pets'}")
    assert not (tmp_path / "started").exists()


def test_mosaics_are_of_the_same_formats(tmp_path):
    (tmp_path / "mosaic.png").write_bytes(POSTSCRIPT)
    with pytest.raises(ValueError, match=r"mosaic.png cannot be read: it is no whole JPEG, PNG"):
        read_mosaic(tmp_path / "mosaic.png", 8)


def test_an_image_of_another_size_becomes_its_centred_square(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (decode_image(tmp_path / "wide.png", 10) == 200).all()
    assert decode_image(tmp_path / "wide.png", 5).shape == (5, 5, 3)
    Image.fromarray(wide[..., 0]).save(tmp_path / "grey.png")
    assert decode_image(tmp_path / "grey.png", 10).shape == (10, 10, 3)
    (tmp_path / "cut.png").write_bytes((tmp_path / "wide.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"cut.png cannot be read"):
        decode_image(tmp_path / "cut.png", 10)
