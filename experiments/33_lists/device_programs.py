"""Programs of CUDA C++ that call CUB's primitives of a whole device, and Thrust; each checks its
results on the host, and returns how many are wrong. ``run`` has nvcc compile one, and runs it as
experiment 31 runs programs that nobody here wrote.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from beside import script
from judging import Found, NotCompiled, short

building = script("31_programs/building.py")
ONE_PROGRAM = Path(__file__).resolve().parents[1] / "31_programs" / "one_program.py"
COUNT = 5000
SECONDS = 200
REFUSALS = ("unknown-instruction", "ptx-syntax-error", "limit-exceeded")
HEAD = """#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>
%s
const int n = %d;
template <class T> T *there(const std::vector<T> &v) {
  T *p; cudaMalloc(&p, v.size() * sizeof(T));
  cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice); return p; }
template <class T> std::vector<T> back(const T *p, size_t count) {
  std::vector<T> v(count);
  cudaMemcpy(v.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost); return v; }
template <class T> int wrong(const std::vector<T> &a, const std::vector<T> &b) {
  int count = a.size() != b.size();
  for (size_t i = 0; i < std::min(a.size(), b.size()); i++) count += !(a[i] == b[i]);
  return count; }
// twice, as CUB has it: how much room it needs, then the work
template <class F> void twice(F f) {
  size_t bytes = 0; void *room = nullptr; f(room, bytes);
  cudaMalloc(&room, bytes); f(room, bytes); }
struct Over { int least; __device__ bool operator()(int v) const { return v > least; } };
int main() {
  std::vector<int> x(n);
  for (int i = 0; i < n; i++) x[i] = int(i * 2654435761u >> 9) %% 2000 - 700;
  int *d = there(x), *o = there(std::vector<int>(n)), *c = there(std::vector<int>(1)), bad = 0;
  std::vector<int> w(n);
%s
  if (cudaDeviceSynchronize() != cudaSuccess) return 99;
  if (bad) printf("%%d results are wrong\\n", bad);
  return std::min(bad, 98);
}
"""
PROGRAMS = {
    "DeviceReduce: Sum, Max": (
        "cub/device/device_reduce",
        """twice([&](void *t, size_t &b) { cub::DeviceReduce::Sum(t, b, d, c, n); });
  bad += back(c, 1)[0] != std::accumulate(x.begin(), x.end(), 0);
  twice([&](void *t, size_t &b) { cub::DeviceReduce::Max(t, b, d, c, n); });
  bad += back(c, 1)[0] != *std::max_element(x.begin(), x.end());""",
    ),
    "DeviceReduce: ReduceByKey": (
        "cub/device/device_reduce",
        """std::vector<int> k(n), wk, ws; for (int i = 0; i < n; i++) k[i] = i * i / 30000;
  int *dk = there(k), *ok = there(std::vector<int>(n));
  for (int i = 0; i < n; i++) { if (!i || k[i] != k[i - 1]) { wk.push_back(k[i]); ws.push_back(0); }
    ws.back() += x[i]; }
  twice([&](void *t, size_t &b) { cub::DeviceReduce::ReduceByKey(t, b, dk, ok, d, o, c,
    cuda::std::plus<>{}, n); });
  bad += back(c, 1)[0] != int(wk.size()); bad += wrong(back(ok, wk.size()), wk);
  bad += wrong(back(o, ws.size()), ws);""",
    ),
    "DeviceScan: InclusiveSum, ExclusiveSum": (
        "cub/device/device_scan",
        """twice([&](void *t, size_t &b) { cub::DeviceScan::InclusiveSum(t, b, d, o, n); });
  std::partial_sum(x.begin(), x.end(), w.begin()); bad += wrong(back(o, n), w);
  twice([&](void *t, size_t &b) { cub::DeviceScan::ExclusiveSum(t, b, d, o, n); });
  for (int i = 0; i < n; i++) w[i] -= x[i]; bad += wrong(back(o, n), w);""",
    ),
    "DeviceRadixSort: SortKeys": (
        "cub/device/device_radix_sort",
        """twice([&](void *t, size_t &b) { cub::DeviceRadixSort::SortKeys(t, b, d, o, n); });
  w = x; std::sort(w.begin(), w.end()); bad += wrong(back(o, n), w);""",
    ),
    "DeviceRadixSort: SortPairsDescending": (
        "cub/device/device_radix_sort",
        """std::vector<int> v(n), k; std::iota(v.begin(), v.end(), 0); int *dv = there(v);
  int *ov = there(v); twice([&](void *t, size_t &b) {
    cub::DeviceRadixSort::SortPairsDescending(t, b, d, o, dv, ov, n); });
  std::stable_sort(v.begin(), v.end(), [&](int a, int b) { return x[a] > x[b]; });
  bad += wrong(back(ov, n), v);""",
    ),
    "DeviceMergeSort: SortKeys": (
        "cub/device/device_merge_sort",
        """twice([&](void *t, size_t &b) { cub::DeviceMergeSort::SortKeys(t, b, d, n,
    cuda::std::less<>{}); });
  w = x; std::sort(w.begin(), w.end()); bad += wrong(back(d, n), w);""",
    ),
    "DeviceSelect: If": (
        "cub/device/device_select",
        """twice([&](void *t, size_t &b) { cub::DeviceSelect::If(t, b, d, o, c, n,
    Over{100}); });
  w.clear(); for (int v : x) if (v > 100) w.push_back(v);
  bad += back(c, 1)[0] != int(w.size()); bad += wrong(back(o, w.size()), w);""",
    ),
    "DeviceHistogram: HistogramEven": (
        "cub/device/device_histogram",
        """twice([&](void *t, size_t &b) { cub::DeviceHistogram::HistogramEven(t, b, d, o, 11, -700,
    1300, n); });
  w.assign(10, 0); for (int v : x) w[(v + 700) / 200]++; bad += wrong(back(o, 10), w);""",
    ),
    "DeviceRunLengthEncode: Encode": (
        "cub/device/device_run_length_encode",
        """std::vector<int> k(n), wk, wc; for (int i = 0; i < n; i++) k[i] = i * i / 30000;
  int *dk = there(k), *ok = there(std::vector<int>(n));
  for (int i = 0; i < n; i++) { if (!i || k[i] != k[i - 1]) { wk.push_back(k[i]); wc.push_back(0); }
    wc.back()++; }
  twice([&](void *t, size_t &b) { cub::DeviceRunLengthEncode::Encode(t, b, dk, ok, o, c, n); });
  bad += back(c, 1)[0] != int(wk.size()); bad += wrong(back(ok, wk.size()), wk);
  bad += wrong(back(o, wc.size()), wc);""",
    ),
    "DeviceSegmentedReduce: Sum": (
        "cub/device/device_segmented_reduce",
        """std::vector<int> from{0, 7, 7, 1000, n}; int *f = there(from); w.assign(4, 0);
  for (int s = 0; s < 4; s++) for (int i = from[s]; i < from[s + 1]; i++) w[s] += x[i];
  twice([&](void *t, size_t &b) { cub::DeviceSegmentedReduce::Sum(t, b, d, o, 4, f, f + 1); });
  bad += wrong(back(o, 4), w);""",
    ),
    "DeviceFor: ForEach": (
        "cub/device/device_for",
        """cub::DeviceFor::ForEach(d, d + n, [] __device__(int &v) { v = v * 2 + 1; });
  for (int i = 0; i < n; i++) w[i] = x[i] * 2 + 1; bad += wrong(back(d, n), w);""",
    ),
    "Thrust: sort, reduce, transform": (
        "thrust/device_vector thrust/sort thrust/reduce thrust/transform",
        """thrust::device_vector<int> v(x.begin(), x.end()); thrust::sort(v.begin(), v.end());
  w = x; std::sort(w.begin(), w.end()); std::vector<int> r(n);
  thrust::copy(v.begin(), v.end(), r.begin()); bad += wrong(r, w);
  bad += thrust::reduce(v.begin(), v.end()) != std::accumulate(x.begin(), x.end(), 0);""",
    ),
}


def run(name: str) -> Found:
    names, body = PROGRAMS[name]
    ending = ".h" if names.startswith("thrust") else ".cuh"
    headers = "\n".join(f"#include <{each}{ending}>" for each in names.split())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        source = place / "case.cu"
        source.write_text(HEAD % (headers, COUNT, body), encoding="utf-8")
        includes = [building.toolkit() / "include" / "cccl"]
        try:
            building.build([source], includes, ("--extended-lambda",), place)
        except building.Missing as error:
            raise NotCompiled(str(error)) from error
        events = place / "events.jsonl"
        command = [sys.executable, str(ONE_PROGRAM), str(place), str(events), "on", "run"]
        try:
            done = subprocess.run(
                command, cwd=place, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return Found("report", f"longer than {SECONDS} seconds")
        lines = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
    return judged(list(map(json.loads, lines)), done)


def judged(events: list[dict], done) -> Found:
    launches = [each for each in events if each["event"] == "launch"]
    warnings = tuple(sorted({each for launch in launches for each in launch["warnings"]}))
    instructions = sum(each["instructions"] for each in launches)
    for each in events:
        if each["event"] == "refused":
            return Found("refused", each["what"], instructions, warnings)
        if each["event"] in ("report", "error"):
            outcome = "refused" if each.get("kind") in REFUSALS else "report"
            return Found(outcome, short(each["said"]), instructions, warnings)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        return Found("wrong", short(" / ".join(said[-3:])), instructions, warnings)
    return Found("right", f"{len(launches)} launches", instructions, warnings)
