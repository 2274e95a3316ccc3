"""The operator among other work of a GPU: order on a stream, several streams and threads, CUDA graphs.

Where a test holds streams back, it is so that launches meet on the GPU as they never would one by one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from on_gpu import (  # noqa: E402
    BF16,
    FP32,
    Launches,
    assert_bits,
    delay,
    integers,
    poisoned,
    product,
    reals,
    together,
)

from packed_gemv import ops  # noqa: E402
from packed_gemv.config import Config  # noqa: E402
from packed_gemv.layout import PackedWeight  # noqa: E402

pytestmark = pytest.mark.usefixtures("cuda")

SPLITS = {
    "one token": (1, 256, 4096, Config(4, 4, 16)),
    "one warp": (8, 512, 2048, Config(1, 1, 37)),
    "64 tokens": (64, 256, 1024, Config(2, 1, 8, nb=8, dual=True)),
}
split = pytest.mark.parametrize("case", SPLITS.values(), ids=SPLITS)
whole_or_split = pytest.mark.parametrize("s", [1, 4], ids=["whole", "split"])


def stream() -> torch.cuda.Stream:
    """A stream that starts after what the current one holds."""
    made = torch.cuda.Stream()
    made.wait_stream(torch.cuda.current_stream())
    return made


@contextmanager
def busy():
    """Large products and copies, for some 50 ms, on two streams that start after the current one."""
    a, room = reals(4096, 4096), torch.empty(2, 2**28, dtype=torch.uint8, device="cuda")
    first, second = stream(), stream()
    for _ in range(300):
        with torch.cuda.stream(first):
            torch.mm(a, a)
        with torch.cuda.stream(second):
            room[0].copy_(room[1])
    yield
    torch.cuda.synchronize()


@contextmanager
def contended():
    """Some 50 ms of copies, and of additions to one address, which its part of the L2 cache must queue."""
    room = torch.empty(2, 2**28, dtype=torch.uint8, device="cuda")
    count, ones = torch.zeros(1, device="cuda"), torch.ones(2**22, device="cuda")
    address = torch.zeros(2**22, dtype=torch.int64, device="cuda")
    first, second = stream(), stream()
    for _ in range(300):
        with torch.cuda.stream(first):
            room[0].copy_(room[1])
    for _ in range(20):
        with torch.cuda.stream(second):
            count.index_add_(0, address, ones)
    yield
    torch.cuda.synchronize()


def captured(work, on: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
    """``work()`` as a graph, captured on a stream where it has been called once."""
    on = on or stream()
    with torch.cuda.stream(on):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=on):
        work()
    torch.cuda.synchronize()
    return graph


AMONG = {"nothing else": nullcontext, "other work": busy}
among_other_work = pytest.mark.parametrize("among", AMONG)


# Order on one stream.


@whole_or_split
@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_x_written_late_on_the_same_stream_is_waited_for(side, s):
    weight, late = integers(512, 512), integers(8, 512)
    packed, x = ops.prepare(weight), torch.zeros_like(late)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream() if side else None):
        delay(20)
        x.copy_(late)
        y = ops.gemv(x, packed, config=Config(4, 2, s))
        torch.cuda.current_stream().synchronize()
    assert_bits(y, product(late, weight))


@whole_or_split
def test_x_written_late_on_another_stream_is_waited_for(s):
    weight, late = integers(512, 512), integers(8, 512)
    packed, x = ops.prepare(weight), torch.zeros_like(late)
    producer, consumer, written = stream(), stream(), torch.cuda.Event()
    with torch.cuda.stream(producer):
        delay(20)
        x.copy_(late)
        written.record()
    with torch.cuda.stream(consumer):
        consumer.wait_event(written)
        y = ops.gemv(x, packed, config=Config(4, 2, s))
    consumer.synchronize()
    assert_bits(y, product(late, weight))


@whole_or_split
def test_y_is_ready_for_the_next_on_the_stream(s):
    weight, x = integers(512, 512), integers(8, 512)
    packed = ops.prepare(weight)
    ys = poisoned(200, 8, 512)
    with together(on := stream()), torch.cuda.stream(on):
        for y in ys:
            y.copy_(ops.gemv(x, packed, out_dtype=FP32, config=Config(4, 2, s)))
    assert_bits(ys, product(x, weight).expand_as(ys))


@whole_or_split
@pytest.mark.parametrize("between", [0, 1], ids=["one launch before", "two launches before"])
@pytest.mark.parametrize("which", ["x", "weight", "bias"])
def test_an_input_rewritten_on_the_stream_is_read_anew(which, between, s):
    """Its loads may pass by the coherent caches, so none may run ahead of the write."""
    config, other = Config(4, 2, s), Launches(8, 512, 512, Config(4, 2, s), count=1)
    values = {"x": integers(3, 8, 512), "weight": integers(3, 512, 512), "bias": integers(3, 512)}
    expected = []
    for i in range(3):
        now = {name: value[i if name == which else 0] for name, value in values.items()}
        expected.append(product(**now))
    values["weight"] = torch.stack([ops.prepare(weight).data for weight in values["weight"]])
    now = {name: value[0].clone() for name, value in values.items()}
    packed, ys = PackedWeight(now["weight"], 512, 512), poisoned(240, 8, 512)
    with together(on := stream()), torch.cuda.stream(on):
        for i, y in enumerate(ys):
            now[which].copy_(values[which][i % 3])
            for _ in range(between):
                other.launch(0)
            ops.gemv(now["x"], packed, now["bias"], out=y, config=config)
    assert_bits(ys, torch.stack(expected).repeat(80, 1, 1))
    if between:
        other.check()


@whole_or_split
@pytest.mark.parametrize("between", [0, 1], ids=["one launch before", "two launches before"])
def test_x_may_be_the_y_of_an_earlier_launch(between, s):
    """A chain of exchanges: each weight has a single 1 or -1 in a row."""
    weights = [_exchange(512) for _ in range(3)]
    packed = [ops.prepare(weight) for weight in weights]
    config, other = Config(4, 2, s), Launches(8, 512, 512, Config(4, 2, s), count=1)
    xs = poisoned(201, 8, 512, dtype=BF16)
    xs[0] = integers(8, 512)
    with together(on := stream()), torch.cuda.stream(on):
        for i in range(200):
            ops.gemv(xs[i], packed[i % 3], out=xs[i + 1], config=config)
            for _ in range(between):
                other.launch(0)
    expected = [xs[0]]
    for i in range(200):
        expected.append(product(expected[i], weights[i % 3]).to(BF16))
    assert_bits(xs, torch.stack(expected))


@whole_or_split
@pytest.mark.parametrize("between", [0, 1], ids=["one launch before", "two launches before"])
def test_a_weight_may_be_the_y_of_an_earlier_launch(between, s):
    """Again exchanges, now of columns of the weight, whose packed form has the size of y."""
    n, k = 4096, 64
    xs = [_exchange(k) for _ in range(3)]
    config, other = Config(2, 1, s), Launches(64, n, k, Config(2, 1, s), count=1)
    datas = poisoned(101, n // 16, k // 32, 2, 32, 8, dtype=BF16)
    datas[0] = ops.prepare(integers(n, k)).data
    with together(on := stream()), torch.cuda.stream(on):
        for i in range(100):
            weight, y = PackedWeight(datas[i], n, k), datas[i + 1].view(k, n)
            ops.gemv(xs[i % 3], weight, out=y, config=config)
            for _ in range(between):
                other.launch(0)
    expected = [datas[0]]
    for i in range(100):
        weight = PackedWeight(expected[i], n, k).unpacked()
        expected.append(product(xs[i % 3], weight).to(BF16).view_as(datas[0]))
    assert_bits(datas, torch.stack(expected))


def _exchange(size: int) -> torch.Tensor:
    rows = torch.eye(size, device="cuda")[torch.randperm(size, device="cuda")]
    return (rows * (1 - 2 * torch.randint(2, (size, 1), device="cuda"))).to(BF16)


@split
@pytest.mark.parametrize("byte", [0, 1, 0x7F, 0xFF], ids="bytes of 0x{:02X}".format)
def test_what_the_workspace_held_does_not_matter(case, byte):
    m, n, _, config = case
    work = Launches(*case, count=3)
    size = (-(-m // 8) * 512 * (1 + config.dual) * config.s + 4) * (n // 16)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.empty_cache()
        dirt = torch.full((2, size), byte, dtype=torch.uint8, device="cuda")
        del dirt  # what this stream allocates next takes its place
        work.launch_all()
    torch.cuda.synchronize()
    work.check()


@among_other_work
@pytest.mark.parametrize("config", [Config(4, 4, 8), Config(8, 1, 33)], ids=["s=8", "s=33"])
def test_a_thousand_launches_give_the_same_bits(config, among):
    x, packed = reals(8, 4096), ops.prepare(reals(256, 4096))
    first, ys = ops.gemv(x, packed, out_dtype=FP32, config=config), poisoned(1000, 8, 256)
    with together(), AMONG[among]():
        for y in ys:
            ops.gemv(x, packed, out=y, config=config)
    assert_bits(ys, first.expand_as(ys))


# Time.


@whole_or_split
def test_a_call_does_not_wait_for_the_gpu(s):
    work, before = Launches(8, 512, 512, Config(4, 2, s), count=1), torch.cuda.Event()
    work.launch(0)  # the first loads the kernel
    torch.cuda.synchronize()
    delay(200)
    before.record()
    work.launch(0)
    assert not before.query()
    torch.cuda.synchronize()
    work.check()


@whole_or_split
def test_a_busy_stream_holds_up_no_other(s):
    work, done = Launches(8, 512, 512, Config(4, 2, s), count=1), torch.cuda.Event()
    with torch.cuda.stream(side := stream()):
        work.launch(0)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream()):
        delay(200)
        done.record()
    with torch.cuda.stream(side):
        work.launch(0)
    side.synchronize()
    assert not done.query()
    work.check()


# Several streams and threads.


@split
@among_other_work
def test_two_streams_at_once(case, among):
    works, streams = [Launches(*case), Launches(*case)], [stream(), stream()]
    for _ in range(3):
        with together(*streams, milliseconds=50), AMONG[among]():
            for i in range(len(works[0])):
                for work, on in zip(works, streams):
                    with torch.cuda.stream(on):
                        work.launch(i)
        for work in works:
            work.check()


@split
@pytest.mark.parametrize("shared", [False, True], ids=["a stream each", "one stream"])
def test_threads_at_once(case, shared):
    count = 2 if not shared else 4
    works = [Launches(*case) for _ in range(count)]
    streams = [stream()] * count if shared else [stream() for _ in range(count)]

    def launch_all(work, on):
        with torch.cuda.stream(on):
            work.launch_all()

    with ThreadPoolExecutor(count) as threads:
        for _ in range(3):
            with together(*streams, milliseconds=60):
                list(threads.map(launch_all, works, streams))
            for work in works:
                work.check()


@pytest.mark.parametrize(
    "case",
    [
        (1, 4096, 1024, Config(4, 1, 8)),
        (8, 512, 2048, Config(1, 1, 37)),
        (16, 512, 4096, Config(8, 1, 16)),
    ],
    ids=["many rows", "one warp", "8 warps"],
)
def test_partial_sums_arrive_whole_where_memory_is_contended(case):
    """Without a fence, one on its way to a busy part of the L2 cache can be late for its CTA's arrival."""
    works, streams = [Launches(*case), Launches(*case)], [stream(), stream()]
    wrong = torch.zeros(2, dtype=torch.int64, device="cuda")

    def rounds(work, count):
        work.outs.fill_(float("nan"))
        work.launch_all()
        count += work.differences()

    graphs = [captured(partial(rounds, *pair)) for pair in zip(works, wrong)]
    for _ in range(3):
        with together(*streams), contended():
            for _ in range(20):
                for graph, on in zip(graphs, streams):
                    with torch.cuda.stream(on):
                        graph.replay()
    assert wrong.tolist() == [0, 0]


def test_a_workspace_stays_its_streams_own_until_the_launch_has_run():
    work, side = Launches(8, 512, 2048, Config(1, 1, 37)), stream()
    size = (512 * 37 + 4) * 32
    for _ in range(3):
        with together(side, torch.cuda.current_stream()):
            for i in range(len(work)):
                with torch.cuda.stream(side):
                    work.launch(i)
                torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")  # freed at once
        work.check()


@whole_or_split
def test_x_freed_on_its_stream_and_recorded_on_another_is_still_read(s):
    weight, late = integers(512, 512), integers(5, 8, 512)
    packed, producer, consumer = ops.prepare(weight), stream(), stream()
    ys = poisoned(100, 8, 512)
    with together(producer, consumer):
        for i, y in enumerate(ys):
            with torch.cuda.stream(producer):
                x = late[i % 5].clone()
            consumer.wait_stream(producer)
            with torch.cuda.stream(consumer):
                delay(0.05)
                ops.gemv(x, packed, out=y, config=Config(4, 2, s))
            x.record_stream(consumer)
            del x
            with torch.cuda.stream(producer):
                torch.full_like(late[0], float("nan"))  # takes the place of x if it can
    assert_bits(ys, torch.stack([product(x, weight) for x in late]).repeat(20, 1, 1))


# CUDA graphs.


@whole_or_split
def test_a_replay_reads_x_weight_and_bias_anew(s):
    x, weight, bias = integers(4, 1024), integers(512, 1024), integers(512)
    packed, y = ops.prepare(weight), poisoned(4, 512)
    graph = captured(lambda: ops.gemv(x, packed, bias, out=y, config=Config(4, 2, s)))
    for _ in range(5):
        x.copy_(integers(4, 1024))
        bias.copy_(integers(512))
        packed.data.copy_(ops.prepare(weight.copy_(integers(512, 1024))).data)
        y.fill_(float("nan"))
        graph.replay()
        assert_bits(y, product(x, weight, bias))


@split
def test_a_thousand_replays_give_the_same_bits(case):
    work = Launches(*case, count=10)
    graph, wrong = captured(work.launch_all), torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        work.outs.fill_(float("nan"))
        graph.replay()
        wrong += work.differences()
    assert wrong.item() == 0


@split
def test_a_graphs_workspace_is_its_own(case):
    """Replays meet plain launches on the stream it was captured on, and memory used anew."""
    recorded, plain, capture, other = Launches(*case), Launches(*case), stream(), stream()
    graph = captured(recorded.launch_all, capture)
    recorded.check()
    for _ in range(3):
        with together(capture, other):
            with torch.cuda.stream(other):
                graph.replay()
            with torch.cuda.stream(capture):
                plain.launch_all()
                torch.full((2**22,), 0xFF, dtype=torch.uint8, device="cuda")
        recorded.check()
        plain.check()


@split
def test_two_graphs_at_once(case):
    works, streams, capture = [Launches(*case), Launches(*case)], [stream(), stream()], stream()
    graphs = [captured(work.launch_all, capture) for work in works]
    for work in works:
        work.check()
    for _ in range(3):
        with together(*streams):
            for graph, on in zip(graphs, streams):
                with torch.cuda.stream(on):
                    graph.replay()
        for work in works:
            work.check()


@split
def test_two_branches_of_one_graph(case):
    works, side = [Launches(*case), Launches(*case)], stream()

    def both():
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        works[0].launch_all()
        with torch.cuda.stream(side):
            works[1].launch_all()
        main.wait_stream(side)

    graph = captured(both)
    for work in works:
        work.check()
    for _ in range(3):
        graph.replay()
        for work in works:
            work.check()
