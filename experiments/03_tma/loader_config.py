"""``LoaderConfig``: what a loader of ``kernels`` copies, how it copies, and where its stages are in
shared memory. No side effects."""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

METHODS = ("cp_async", "bulk", "tensor")
STAGE_BYTES = 16384
THREADS = 256  # threads that read
CHUNK = 16  # bytes of a cp.async and of a thread's read
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # of what a 128-byte swizzle is applied to
SWIZZLE_COLUMNS = 64  # of x, 128 bytes
X_PADDING = 16
SHARED_LIMIT = HOPPER.shared_bytes_per_block


@dataclass(frozen=True)
class LoaderConfig:
    """columns: width of a tile, 64, 128 or 256; relaid: whether each unit is contiguous in memory;
    batch: rows of x, 0 for none."""

    method: str = "bulk"
    relaid: bool = False
    columns: int = 128
    stages: int = 4
    batch: int = 0

    def __post_init__(self):
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r} must be one of {METHODS}")
        if self.columns not in (64, 128, 256):
            raise ValueError(f"columns={self.columns} must be 64, 128 or 256")
        if self.stages < 2:
            raise ValueError(
                f"stages={self.stages} must be at least 2: one is read while another fills"
            )
        if self.batch % 8 or not 0 <= self.batch <= 64:
            raise ValueError(f"batch={self.batch} must be 0 or a multiple of 8 up to 64")
        if self.shared_bytes > SHARED_LIMIT:
            raise ValueError(
                f"{self} needs {self.shared_bytes} bytes of shared memory, must be at most"
                f" {SHARED_LIMIT}"
            )

    @property
    def row_bytes(self):
        return 8 * self.columns

    @property
    def stage_rows(self):
        return STAGE_BYTES // self.row_bytes

    @property
    def stage_k(self):
        return 16 * self.stage_rows

    @property
    def x_pitch(self):
        return 2 * self.stage_k + (X_PADDING if self.method == "bulk" else 0)

    @property
    def pitch(self):
        """Bytes from one stage to the next in shared memory."""
        return STAGE_BYTES + -(-self.batch * self.x_pitch // ALIGNMENT) * ALIGNMENT

    @property
    def copied_bytes(self):
        return STAGE_BYTES + self.batch * 2 * self.stage_k

    @property
    def threads(self):
        return THREADS if self.method == "cp_async" else THREADS + 32

    @property
    def barriers_at(self):
        return self.stages * self.pitch

    @property
    def shared_bytes(self):
        return self.barriers_at + barrier_bytes(self.stages) + ALIGNMENT

    def check(self, n, k):
        if n % self.columns or k % self.stage_k:
            raise ValueError(
                f"n={n} and k={k} must be multiples of columns={self.columns} and"
                f" stage_k={self.stage_k}: loaders have no tails"
            )

    def units(self, n, k):
        self.check(n, k)
        return n // self.columns * (k // self.stage_k)

    def grid(self, m, n, k, sms):
        return (min(sms, self.units(n, k)), 1, 1)
