from benchmarks.control_plane.prefix_affinity import AIMS, conversations, hit_rate


def test_router_finds_cached_beginnings_as_often_as_an_oracle() -> None:
    for n_workers in AIMS:
        turns = conversations(1_000, rate_per_s=3.0 * n_workers / 4)
        rates = {name: hit_rate(turns, n_workers, name) for name in ("random", "router", "oracle")}
        assert rates["router"] > rates["oracle"] - 0.02, rates
        assert rates["router"] > rates["random"] + 0.1, rates
