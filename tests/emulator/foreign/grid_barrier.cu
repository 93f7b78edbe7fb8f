// Rows of a table, each made of what other blocks left in the row before: blocks wait for the whole grid.
#include <cooperative_groups.h>
extern "C" __global__ void rows(int *table, int count) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    int n = grid.size(), i = grid.thread_rank();
    for (int row = 1; row < count; ++row) {
        table[row * n + i] = table[(row - 1) * n + n - 1 - i] + 1;
        grid.sync();
    }
}
