from collections.abc import Sequence

class Error(Exception): ...

def open_library(path: str | None = None) -> None: ...
def driver_version() -> int | None: ...
def encode_im2col(
    *,
    address: int,
    data_type: int,
    element_bytes: int,
    shape: Sequence[int],
    strides: Sequence[int],
    pixel_box_lower_corner: Sequence[int],
    pixel_box_upper_corner: Sequence[int],
    element_strides: Sequence[int],
    channels_per_pixel: int,
    pixels_per_column: int,
    swizzle: int,
    fill_nan: bool,
) -> bytes: ...
