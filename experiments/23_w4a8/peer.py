"""Humming's products in 8 bits (PyPI: humming-kernels), by the peers of experiment 25."""

from pathlib import Path

from layers import HUMMING, LARGEST_ERROR

PEERS = Path(__file__).resolve().parents[1] / "25_every_cell" / "peers" / "humming.py"


def peer_of(kind, weights, batch):
    """(contender, its error) of Humming's product in 8 bits, or None, said, if it fails or is
    wrong."""
    from numba_marlin.bench import peers
    from numba_marlin.bench.measure import relative_error

    where = f"{weights.problem.k} x {weights.problem.n}, m={batch.x.shape[0]}"
    try:
        peer = peers.find(f"{PEERS}:{HUMMING[kind]}")
        found = peers.contender(peer, peers.prepared(peer, weights), weights, batch)
        error = max(relative_error(found, batch, index) for index in range(found.copies))
    except peers.PeerFailed as failure:
        print(f"left out at {where}: {failure}", flush=True)
        return None
    if not error < LARGEST_ERROR[kind]:
        print(f"left out at {where}: {peer.name} has a relative error of {error:.3g}", flush=True)
        return None
    return found, error
