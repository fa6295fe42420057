"""Two buoys in order, drifting away from the start."""

FAMILIES = {
    "boat-buoys": {
        "name": "boat-buoys",
        "environment": {"name": "Boat"},
        "specification": "achieve reach(a); achieve reach(b)",
        "start": {"center": [0.0, 0.0], "noise": 0.2},
        "regions": {
            "a": {"center": [2.0, 3.0], "half_width": 1.0, "shift": [0.2, 0.1]},
            "b": {"center": [0.0, 6.0], "half_width": 1.0, "shift": [0.0, 0.3]},
        },
        "last_index": 4,
        "gaps": [2],
        "horizon": 12,
        "teacher": "cem",
        "network": {"hidden": [8]},
        "reward": {"unit": 5.0, "depth": 0.3},
        "description": "two buoys in order",
    }
}
