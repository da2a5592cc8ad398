import pytest
import torch

from omnizen.comm.packing import FRAME_INTS, INLINE_SIZES, Frame, nbytes, pack, sizes, unpack

CPU = torch.device("cpu")


def test_packing_keeps_bits_where_starts_are_not_aligned() -> None:
    parts = [
        torch.tensor([True, False, True]),
        torch.tensor([[1, -2], [3, 4]]),
        torch.tensor(2.5),
        torch.zeros(0, 4, dtype=torch.float64),
        torch.tensor([float("nan"), -0.0], dtype=torch.bfloat16),
        torch.arange(12.0).view(3, 4).t()[1:],
    ]
    packed = pack(parts, CPU)
    assert packed.numel() == nbytes(parts) == 3 + 32 + 4 + 0 + 4 + 36
    for got, given in zip(unpack(packed, sizes(parts), parts), parts, strict=True):
        assert (got.dtype, got.shape) == (given.dtype, given.shape)
        assert torch.equal(got.contiguous().view(-1).view(torch.uint8), pack([given], CPU))


@pytest.mark.parametrize("count", [0, 1, INLINE_SIZES, INLINE_SIZES + 1, 40])
def test_frames_come_back_with_all_their_sizes(count) -> None:
    frame = Frame.of("all_gather", [torch.zeros(i, 2, dtype=torch.int16) for i in range(count)], step=None)
    encoded = frame.encode()
    assert encoded.shape == (FRAME_INTS,)
    assert Frame.count(encoded.tolist()) == count
    assert Frame.decode(encoded.tolist() + list(frame.sizes[INLINE_SIZES:])) == frame


def test_frames_agree_on_kinds_and_not_on_first_dimensions() -> None:
    frame = Frame.of("all_gather", [torch.zeros(3, 2)], step=1)
    assert frame.agrees(Frame.of("all_gather", [torch.zeros(5, 2)], step=2))
    assert not frame.agrees(Frame.of("all_to_all", [torch.zeros(3, 2)], step=1))
    assert not frame.agrees(Frame.of("all_gather", [torch.zeros(3, 3)], step=1))
    assert not frame.agrees(Frame.of("all_gather", [torch.zeros(3, 2, dtype=torch.float64)], step=1))
    assert not frame.agrees(Frame.of("all_gather", [torch.zeros(3, 2)] * 2, step=1))
    whole = Frame.of("all_reduce", [torch.zeros(3, 2)], step=1, whole=True)
    assert not whole.agrees(Frame.of("all_reduce", [torch.zeros(5, 2)], step=1, whole=True))


def test_small_parts_travel_in_the_frame_and_large_ones_do_not() -> None:
    small = [torch.tensor([1.5, float("nan")], dtype=torch.float64), torch.tensor([True, False, True])]
    frame = Frame.of("all_gather", small, step=3, packed=pack(small, CPU))
    assert frame.carries
    back = Frame.decode(frame.encode().tolist())
    assert back == frame
    assert back.payload == bytes(pack(small, CPU).tolist())
    large = [torch.zeros(1 + 8 * INLINE_SIZES, dtype=torch.uint8)]
    bare = Frame.of("all_gather", large, step=3, packed=pack(large, CPU))
    assert not bare.carries
    assert not bare.payload
    assert Frame.decode(bare.encode().tolist()) == bare
