"""Does replay drift? Long rollouts of every gate against the dense rollout: ``python -m model.drift``.

Answers what reviewers of FastCar (arXiv:2505.14709) asked for: quality per frame at 32 and 64 frames, the distance
d(t, l) of the MLP outputs to the dense ones over time, whether the replay ratio climbs to 100 %, and whether the
picture still moves. How to run and read it: docs/drift.md.
"""
