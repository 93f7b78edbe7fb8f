// Allocates, prints and frees.
extern "C" __global__ void runtime(int *out) {
  int *p = (int *)malloc(sizeof(int) * 4);
  for (int i = 0; i < 4; i++) p[i] = i * threadIdx.x;
  printf("thread %d: %s %5.2f %lld\n", threadIdx.x, p[3] > 3 ? "big" : "small", p[3] / 4.0,
         (long long)p[2] << 40);
  out[threadIdx.x] = p[0] + p[1] + p[2] + p[3];
  free(p);
}
