import imageio.v3
import imageio_ffmpeg
import numpy as np
import pytest

from host.video import OutputError, write_mp4, write_pngs


def moving_bar(frames: int, height: int = 48, width: int = 64) -> np.ndarray:
    pictures = np.zeros((frames, height, width, 3), dtype=np.uint8)
    for number in range(frames):
        pictures[number, :, 8 * number:8 * number + 8, 0] = 255
    return pictures


def test_the_video_is_h264_yuv420p_with_its_index_in_front(tmp_path):
    path = tmp_path / "video.mp4"
    write_mp4(path, moving_bar(5), fps=8, upscale=2)
    assert [p.name for p in tmp_path.iterdir()] == ["video.mp4"]
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    assert meta["codec"] == "h264" and meta["pix_fmt"].startswith("yuv420p")
    assert meta["size"] == (128, 96) and meta["fps"] == 8
    assert len(list(reader)) == 5
    data = path.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")


def test_pixels_survive(tmp_path):
    write_mp4(tmp_path / "video.mp4", moving_bar(3), upscale=4)
    reader = imageio_ffmpeg.read_frames(str(tmp_path / "video.mp4"))
    size = next(reader)["size"]
    shown = np.stack([np.frombuffer(f, np.uint8).reshape(size[1], size[0], 3) for f in reader])[:, 2::4, 2::4]
    assert np.abs(shown[..., 1:].astype(int) - moving_bar(3)[..., 1:]).mean() < 4
    assert np.abs(shown.astype(int) - moving_bar(3)).mean() < 8


def test_odd_sides_are_made_even(tmp_path):
    write_mp4(tmp_path / "video.mp4", moving_bar(2, 31, 65))
    assert next(imageio_ffmpeg.read_frames(str(tmp_path / "video.mp4")))["size"] == (66, 32)


def test_pngs_are_exact_and_replace_older_ones(tmp_path):
    write_pngs(tmp_path / "frames", moving_bar(5))
    write_pngs(tmp_path / "frames", moving_bar(3))
    assert sorted(p.name for p in (tmp_path / "frames").iterdir()) == ["000.png", "001.png", "002.png"]
    np.testing.assert_array_equal(imageio.v3.imread(tmp_path / "frames" / "002.png"), moving_bar(3)[2])


def test_what_cannot_be_written_is_a_plain_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot write pictures to .*; free some space or name another folder"):
        write_pngs(tmp_path / "file" / "frames", moving_bar(2))
    with pytest.raises(OutputError, match="cannot write .*video.mp4"):
        write_mp4(tmp_path / "nowhere" / "video.mp4", moving_bar(2))
    with pytest.raises(ValueError, match="needs frames"):
        write_mp4(tmp_path / "video.mp4", moving_bar(0))
