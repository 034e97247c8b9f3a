"""How long messages travel on the virtual cluster, and how the flag is read."""

import math
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cbdybw.clusters.cards import Cards
from cbdybw.clusters.network import HEADER, Network, parse
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.worker import Kind, Message
from cbdybw.errors import BadInput
from cbdybw.recorder import Recorder
from tests.runs import outcome, run


def update(k=0, source=0, parameters=25):
    return Message(Kind.UPDATE, k, source, vector=np.zeros(parameters, np.float32))


def test_a_message_takes_its_bytes_over_the_bandwidth_and_then_the_latency():
    network = Network(latency=2.0, bandwidth=10.0)
    arrival, _ = network.arrival(0, 1, update(), now=5.0)
    assert arrival == 5.0 + (HEADER + 100) / 10.0 + 2.0
    close = Message(Kind.CLOSE, 0, 2, body=(1, 4, 5))
    assert network.arrival(2, 1, close, now=5.0)[0] == 5.0 + (HEADER + 24) / 10.0 + 2.0


def test_a_network_card_sends_one_message_after_the_other():
    network = Network(latency=1.0, bandwidth=116.0)
    arrivals = [network.arrival(0, dest, update(), now=0.0)[0] for dest in (1, 2, 3)]
    assert arrivals == [2.0, 3.0, 4.0]
    assert network.arrival(1, 0, update(source=1), now=0.0)[0] == 2.0  # another card
    assert network.arrival(0, 1, update(), now=50.0)[0] == 52.0  # idle again


def test_a_link_may_have_its_own_latency_and_bandwidth():
    network = Network(latency=1.0, links={(0, 1): (0.25, 232.0)})
    assert network.arrival(0, 1, update(), now=0.0)[0] == 0.75
    assert network.arrival(0, 2, update(), now=1.0)[0] == 2.0


def test_a_random_latency_never_reorders_a_link():
    network = Network(jitter=1.0, seed=3)
    free = [Network(jitter=1.0, seed=3).arrival(0, 1, update(k), 0.01 * k)[0] for k in range(300)]
    kept = [network.arrival(0, 1, update(k), 0.01 * k)[0] for k in range(300)]
    assert free != sorted(free)
    assert kept == np.maximum.accumulate(free).tolist()


def test_jitter_is_exponential_and_keyed_by_seed_link_kind_and_iteration():
    def extra(seed=1, source=0, dest=1, kind=Kind.UPDATE, k=0):
        message = Message(kind, k, source)
        return Network(jitter=0.5, seed=seed).arrival(source, dest, message, 0.0)[0]

    draws = np.array([extra(k=k) for k in range(20_000)])
    assert draws.min() >= 0
    assert draws.mean() == pytest.approx(0.5, rel=0.03)
    assert draws.std() == pytest.approx(0.5, rel=0.03)
    others = [extra(), extra(seed=2), extra(source=2), extra(dest=2), extra(kind=Kind.CLOSE)]
    assert len(set(others)) == 5
    assert extra() == extra()


def test_data_that_arrives_with_control_sent_before_it_comes_behind():
    network = Network(latency=1.0)
    assert network.arrival(0, 1, update(), 0.0) == (1.0, False)
    assert network.arrival(0, 1, Message(Kind.CLOSE, 0, 0), 0.0) == (1.0, False)
    assert network.arrival(0, 1, update(), 0.0) == (1.0, True)
    assert network.arrival(0, 2, update(), 0.0) == (1.0, False)  # another link
    assert network.arrival(0, 1, update(), 0.5) == (1.5, False)  # another instant


def test_behind_a_cut_a_card_is_idle_and_links_are_empty():
    network = Network(latency=1.0, bandwidth=1.0)
    network.arrival(0, 1, Message(Kind.CLOSE, 0, 0), 0.0)
    network.forget()
    assert network.arrival(0, 1, update(), 17.0) == Network(1.0, 1.0).arrival(0, 1, update(), 17.0)


def test_links_with_nothing_under_way_take_no_memory():
    network = Network(latency=0.5)
    for k in range(100):
        for dest in range(1, 1000):
            network.arrival(k, dest, Message(Kind.VISITED, k, k, (0,)), float(k))
    assert len(network._last) < 4000


def test_only_a_network_without_any_delay_is_instant():
    assert Network().instant
    assert parse("", 4, 0).instant
    for slow in (
        {"latency": 1e-9},
        {"bandwidth": 1e12},
        {"jitter": 1e-9},
        {"links": {(0, 1): (1, 1)}},
    ):
        assert not Network(**slow).instant


def test_collectives_cost_rounds_of_latency_and_shares_of_the_vector():
    network = Network(latency=0.5, bandwidth=100.0)
    assert [network.barrier(n) for n in (1, 2, 3, 8, 9)] == [0.0, 0.5, 1.0, 1.5, 2.0]
    vector = np.zeros(100, np.float32)
    assert network.allreduce(4, vector) == pytest.approx(2 * 3 * (0.5 + 400 / 4 / 100.0))
    assert network.allreduce(1, vector) == 0.0


def test_the_flag_names_latency_bandwidth_jitter_and_a_file_of_links(tmp_path):
    path = tmp_path / "links"
    path.write_text("# i j latency bandwidth\n0 2 3.0 inf\n\n1 2 0 116  # slow\n")
    network = parse(f"latency=1,bandwidth=232,links={path}", 3, 0)
    assert network.arrival(0, 1, update(), 0.0)[0] == 1.5
    assert network.arrival(2, 0, update(source=2), 0.0)[0] == 3.0  # both directions
    assert network.arrival(1, 2, update(source=1), 0.0)[0] == 1.0
    assert parse("jitter=0.5", 3, 8)._extra(0, 1, update()) != 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("latency=-1", "--network=latency=-1: latency is '-1'; use a finite number from 0 up"),
        ("latency=nan", "latency is 'nan'"),
        ("bandwidth=0", "bandwidth is '0'; use bytes per second above 0, or inf"),
        ("bandwidth=nan", "bandwidth is 'nan'"),
        ("jitter=inf", "jitter is 'inf'"),
        ("speed=3", "there is no key 'speed'; use latency="),
        ("instant", "'instant' is no pair key=value"),
        ("links=/nowhere/at/all", "links=/nowhere/at/all: No such file or directory; give a"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line(text, says):
    with pytest.raises(BadInput) as error:
        parse(text, 4, 0)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line", ["0 1 0.5", "0 one 0.5 1", "0 1 -1 1", "0 1 0 0", "0 4 0 1", "1 1 0 1", "-1 0 0 1",
             "0 1 0 1 7"],
)  # fmt: skip
def test_a_wrong_line_of_links_is_named(line, tmp_path):
    path = tmp_path / "links"
    path.write_text(f"0 1 0 inf\n{line}\n")
    with pytest.raises(BadInput, match=f"{path}:2: ") as error:
        parse(f"links={path}", 4, 0)
    assert "\n" not in str(error.value)


def test_a_file_of_links_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "links"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not a text file"):
        parse(f"links={path}", 4, 0)


# Cards that are shared


def shared(rates, **links):
    return Network(cards=dict(enumerate(rates)), **links)


def arrivals(network, *sends):
    """When messages arrive, each sent as (time, source, dest, message), times ascending; in the
    order of `sends`."""
    found, waiting = {}, deque(enumerate(sends))

    def then(n, at, behind):
        found[n] = at

    while waiting or network.next < math.inf:
        if waiting and waiting[0][1][0] <= network.next:
            n, (now, source, dest, message) = waiting.popleft()
            network.share(source, dest, message, now, partial(then, n))
        else:
            now = network.next
            for told, at, behind in network.through(now):
                told(at, behind)
    return [found[n] for n in range(len(sends))]


def test_messages_share_a_card_evenly():
    network, message = shared([116.0, 1e9, 1e9]), update()
    assert network.arrival(0, 1, message, 0.0)[0] == pytest.approx(1.0)  # nothing else is known of
    assert network.arrival(0, 2, message, 0.0)[0] == pytest.approx(2.0)
    network.forget()
    both = arrivals(network, (0.0, 0, 1, message), (0.0, 0, 2, message))
    assert both == pytest.approx([2.0, 2.0])


def test_a_slow_receiver_leaves_the_rest_of_the_senders_card_to_others():
    network, message = shared([116.0, 29.0, 116.0, 116.0]), update()
    found = arrivals(network, *((0.0, 0, dest, message) for dest in (1, 2, 3)))
    assert found == pytest.approx([4.0, 2 / 0.75, 2 / 0.75])


def test_a_receivers_card_is_shared_and_sending_and_receiving_are_not():
    network = shared([116.0, 116.0, 116.0])
    sends = (0.0, 0, 2, update()), (0.5, 1, 2, update(source=1)), (0.5, 2, 0, update(source=2))
    assert arrivals(network, *sends) == pytest.approx([1.5, 2.0, 1.5])


def test_one_connection_carries_one_message_after_the_other_and_keeps_nobody_else_waiting():
    network, close = shared([116.0, 1e9, 1e9], latency=1.0), Message(Kind.CLOSE, 0, 0)
    sends = [(0.0, 0, 1, update()), (0.0, 0, 1, update(1)), (0.0, 0, 2, close), (0.0, 0, 1, close)]
    small = 2 * HEADER / 116.0  # while it shares the card
    expected = [2.0 + small / 2, 3.0 + small / 2, 1.0 + small, 3.0 + small]
    assert arrivals(network, *sends) == pytest.approx(expected)


def test_cards_are_limited_by_their_links_and_have_the_default_rate_if_nothing_is_said():
    network = Network(bandwidth=116.0, cards={0: 1e9, 1: 1e9}, links={(0, 1): (0.25, 58.0)})
    sends = (0.0, 0, 1, update()), (9.0, 0, 2, update())
    assert arrivals(network, *sends) == pytest.approx([2.25, 10.0])


def test_a_small_message_does_not_overtake_a_large_one_that_is_held_up():
    network = Network(latency=0.5, cards={0: 200.0, 1: 50.0, 2: 100.0})
    a, b = (Message(Kind.CLOSE, 0, 0, body=(0,) * n) for n in (23, 0))  # 200 and 16 bytes
    c = Message(Kind.CLOSE, 0, 1, body=(0,) * ((100 - HEADER) // 8))
    nbytes = HEADER + 8 * len(c.body)
    sends = (0.0, 0, 2, a), (0.0, 0, 2, b), (0.0, 1, 2, c)
    ends = nbytes / 50.0  # of c, which has half of the receiver's card, as a has
    first = ends + (200 - 50 * ends) / 100
    assert arrivals(network, *sends) == pytest.approx([first + 0.5, first + 0.66, ends + 0.5])


def test_a_message_is_sooner_through_when_its_rival_is_slowed_by_others():
    """200 bytes compete with 1,000 for a receiver; these have to share their sender's card."""
    network = Network(cards={0: 100.0, 1: 100.0})
    large = Message(Kind.CLOSE, 0, 0, body=(0,) * 123)
    small = Message(Kind.CLOSE, 0, 2, body=(0,) * 23)
    sends = (0.0, 0, 1, large), (0.0, 2, 1, small), (0.0, 0, 3, large), (0.0, 0, 4, large)
    assert arrivals(network, *sends)[1] == pytest.approx(3.0)  # 66.7 bytes per second, not 50


def test_cards_agree_with_an_integration_in_small_steps():
    """Of random messages; a small step of time moves bytes by `_paces` of what is under way."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        rates = rng.choice([50.0, 100.0, 300.0], 4)
        sends = sorted(
            (float(rng.integers(4)), *map(int, rng.choice(4, 2, replace=False)), int(size))
            for size in rng.integers(0, 40, 12)
        )
        network = shared(rates)
        told = [
            (now, i, j, Message(Kind.CLOSE, n, i, body=(0,) * size))
            for n, (now, i, j, size) in enumerate(sends)
        ]
        found = arrivals(network, *told)
        cards = Cards(rates.__getitem__, lambda way: math.inf)
        queues, now, step, expected = {}, 0.0, 1e-3, {}
        ahead = deque((s[0], n, s[1:3], HEADER + 8.0 * s[3]) for n, s in enumerate(sends))
        while ahead or queues:
            while ahead and ahead[0][0] <= now + 1e-9:
                _, n, way, nbytes = ahead.popleft()
                queues.setdefault(way, deque()).append([n, nbytes])
            now += step
            for way, pace in cards._paces(list(queues)).items():
                queues[way][0][1] -= pace * step
                if queues[way][0][1] <= 0:
                    expected[queues[way].popleft()[0]] = now
                    if not queues[way]:
                        del queues[way]
        np.testing.assert_allclose(found, [expected[n] for n in range(len(sends))], atol=0.05)


def test_no_connection_could_be_faster_without_a_slower_one_paying_for_it():
    rng = np.random.default_rng(5)
    for _ in range(200):
        rates = rng.choice([1.0, 2.0, 5.0, 13.0], 5).tolist()
        links = {
            (int(i), int(j)): float(rng.choice([0.5, 3.0])) for i, j in rng.integers(5, size=(4, 2))
        }
        link = lambda way, links=links: links.get(way, math.inf)  # noqa: E731
        ways = {(int(i), int(j)) for i, j in rng.integers(5, size=(8, 2)) if i != j}
        paces = Cards(rates.__getitem__, link)._paces(sorted(ways))
        for way, pace in paces.items():
            out = [paces[other] for other in ways if other[0] == way[0]]
            into = [paces[other] for other in ways if other[1] == way[1]]
            limits = [(rates[way[0]], out), (rates[way[1]], into), (link(way), [pace])]
            assert all(sum(users) <= rate * (1 + 1e-9) for rate, users in limits)
            assert any(
                sum(users) >= rate * (1 - 1e-9) and pace >= max(users) * (1 - 1e-9)
                for rate, users in limits
            )


def test_the_virtual_cluster_delivers_a_message_when_those_after_it_have_let_it_through():
    async def main(worker):
        if worker.rank == 0:
            for dest in (1, 2):
                worker.send(dest, update())
                worker.send(dest, Message(Kind.CLOSE, 0, 0))
        else:
            await worker.receive(lambda m: m.kind is Kind.UPDATE)
        came = worker.now()
        await worker.checkpoint(lambda: None)
        return came, worker.now()

    network = Network(cards={0: 116.0, 1: 1e9, 2: 1e9})
    cluster = VirtualCluster(
        3, delay=lambda rank, index: 1.0, network=network, seed=0, trace=Trace(),
        recorder=Recorder(1),
    )  # fmt: skip
    (_, cut), *others = cluster.run(main).values()
    assert [came for came, _ in others] == pytest.approx([2.0, 2.0])
    assert cut == pytest.approx(2.0 + 2 * HEADER / 116.0)  # nothing is under way then


@pytest.mark.parametrize(
    "algorithm", ["cb_static", "cb_dybw", "dsgd_aau", "ad_psgd", "bsp", "adsp"]
)
def test_runs_over_uneven_cards_end_and_go_on_from_a_cut_bit_for_bit(tmp_path, algorithm):
    (tmp_path / "links").write_text("0 2e4\n1 1e4\n2 5e3\n0 1 0.01 inf\n")
    flags = {
        "algorithm": algorithm,
        "workload": "quadratic:dim=30",
        "workers": 3,
        "commit_rate": 20,
    }
    flags |= {"network": f"links={tmp_path / 'links'}", "graph": "complete", "checkpoint_every": 7}
    flags |= {"delay": "exponential:mean=0.2" if algorithm != "adsp" else "constant:mean=0.2"}
    for seed in range(8):
        whole, parts = (f"{tmp_path}/{name}-{seed}" for name in ("whole", "parts"))
        run(**flags, seed=seed, iterations=30, run_dir=whole)
        run(**flags, seed=seed, iterations=19, run_dir=parts)
        run(**flags, seed=seed, iterations=30, run_dir=parts, resume=True)
        assert outcome(Path(parts)) == outcome(Path(whole))


def test_shared_cards_are_idle_behind_a_cut():
    network = shared([116.0, 116.0])
    network.arrival(0, 1, update(), 0.0)
    network.forget()
    assert network.arrival(0, 1, update(), 0.5)[0] == pytest.approx(1.5)


def test_collectives_over_cards_go_at_the_pace_of_the_slowest():
    network = Network(cards={0: 50.0, 1: 100.0}, links={(0, 1): (0.5, 80.0)})
    assert network.barrier(4) == 1.0
    vector = np.zeros(100, np.float32)
    assert network.allreduce(4, vector) == pytest.approx(2 * 3 * (0.5 + 400 / 4 / 50.0))


def test_a_file_names_the_rates_of_cards_among_links(tmp_path):
    path = tmp_path / "links"
    path.write_text("0 116  # a slow card\n0 1 0.25 inf\n2 232\n")
    network = parse(f"links={path}", 3, 0)
    assert network.shares
    assert not parse(f"links={_only_links(tmp_path)}", 3, 0).shares
    assert network.arrival(0, 1, update(), 0.0)[0] == pytest.approx(1.25)
    assert network.arrival(1, 2, update(source=1), 0.0)[0] == pytest.approx(0.5)


def _only_links(folder):
    path = folder / "only"
    path.write_text("0 1 0.25 inf\n")
    return path


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0 0", "'0 0' is neither `i j latency bandwidth` nor `i rate`"),
        ("one 5", "is neither `i j latency bandwidth` nor `i rate`"),
        ("0 -3", "is neither"),
        ("0 nan", "is neither"),
        ("4 1e6", "no rank 4 among the ranks 0 … 3"),
        ("0", "is neither"),
    ],
)
def test_a_wrong_line_of_cards_is_named(line, says, tmp_path):
    path = tmp_path / "links"
    path.write_text(f"0 1e6\n{line}\n")
    with pytest.raises(BadInput, match=f"{path}:2: ") as error:
        parse(f"links={path}", 4, 0)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
