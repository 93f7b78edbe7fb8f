"""Small PTX kernels of known merits for the tests of this room."""

HEADER = (
    ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 src, .param .u64"
    " dst)\n{\n"
)
DECLARED = (
    ".reg .pred %p<9>;\n.reg .b32 %r<40>;\n.reg .b64 %rd<20>;\n.reg .f32 %f<20>;\n.shared .align"
    " 128 .b8 tile[4096];\n"
)


def text(body: str) -> str:
    """A kernel of these statements, with registers of every width and 4096 bytes of shared memory,
    ``tile``."""
    return f"{HEADER}{DECLARED}{body}\nret;\n}}\n"


# Each thread of two warps copies four bytes to shared memory and takes its neighbour's, 64 places
# on.
NEIGHBOUR = text("""
mov.u32 %r1, %tid.x;
ld.param.u64 %rd1, [src];
ld.param.u64 %rd2, [dst];
mov.u32 %r2, tile;
shl.b32 %r3, %r1, 2;
cvt.u64.u32 %rd3, %r3;
add.s64 %rd1, %rd1, %rd3;
add.s64 %rd2, %rd2, %rd3;
add.u32 %r4, %r2, %r3;
cp.async.ca.shared.global [%r4], [%rd1], 4;
cp.async.commit_group;
cp.async.wait_group 0;
bar.sync 0;
xor.b32 %r5, %r3, 128;
add.u32 %r6, %r2, %r5;
ld.shared.u32 %r7, [%r6];
setp.ge.u32 %p1, %r1, 60;
@%p1 bra DONE;
st.global.u32 [%rd2], %r7;
DONE:
""")
