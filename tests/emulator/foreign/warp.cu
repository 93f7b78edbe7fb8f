extern "C" __global__ void votes(const int* x, unsigned* out) {
    int v = x[threadIdx.x];
    unsigned full = 0xffffffffu;
    unsigned b = __ballot_sync(full, v & 1);
    unsigned same = __match_any_sync(full, v);
    int all; unsigned same_all = __match_all_sync(full, v / 100, &all);
    int any = __any_sync(full, v > 95), every = __all_sync(full, v >= 0);
    unsigned s = __reduce_add_sync(full, (unsigned)v), mx = __reduce_max_sync(full, v), o = __reduce_or_sync(full, (unsigned)v);
    int up = __shfl_up_sync(full, v, 3, 16), idx = __shfl_sync(full, v, (threadIdx.x * 7) & 31);
    long long wide = __shfl_xor_sync(full, (long long)v << 33 | v, 5);
    unsigned* mine = out + 12 * threadIdx.x;
    mine[0]=b; mine[1]=same; mine[2]=same_all; mine[3]=all; mine[4]=any; mine[5]=every; mine[6]=s; mine[7]=mx; mine[8]=o; mine[9]=up; mine[10]=idx; mine[11]=(unsigned)(wide>>32) ^ (unsigned)wide;
    if (v & 1) { unsigned m = __activemask(); out[12*blockDim.x + threadIdx.x] = __popc(m & ((1u << (threadIdx.x & 31)) - 1)); }
}
