"""What of the embeddings of a quantised model is as the float model's are."""

import numpy as np
import scipy.stats

NEIGHBOURS = 10


def compared(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """found, wanted: embeddings of the same sentences, wanted the float model's. cosine: of a
    sentence's two embeddings, the mean and the smallest. spearman: rank correlation of the
    similarities of all pairs. neighbours: how many of a sentence's ten nearest stay among them."""
    cosines = (found * wanted).sum(1)
    pairs = np.triu_indices(len(wanted), 1)
    ours, theirs = found @ found.T, wanted @ wanted.T
    for each in (ours, theirs):
        np.fill_diagonal(each, -np.inf)
    nearest = [np.argsort(-each, axis=1, kind="stable")[:, :NEIGHBOURS] for each in (ours, theirs)]
    kept = [len(set(a) & set(b)) / NEIGHBOURS for a, b in zip(*nearest)]
    return {
        "cosine": float(cosines.mean()),
        "cosine_min": float(cosines.min()),
        "spearman": float(scipy.stats.spearmanr(ours[pairs], theirs[pairs]).statistic),
        "neighbours": float(np.mean(kept)),
    }
