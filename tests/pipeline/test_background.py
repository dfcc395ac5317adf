"""Work that threads do ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.background import ahead


def test_results_come_in_the_order_of_the_items_and_no_more_than_asked_are_in_work() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(20):
            taken.append(item)
            yield item

    def work(item: int) -> int:
        time.sleep(0.001 * (item % 3))
        return -item

    found = []
    with ThreadPoolExecutor(4) as pool:
        for number, result in enumerate(ahead(pool, work, items(), 5)):
            found.append(result)
            assert len(taken) <= number + 5
    assert found == [-item for item in range(20)]


def test_an_error_comes_where_its_result_would() -> None:
    with ThreadPoolExecutor(2) as pool:
        results = ahead(pool, lambda item: 1 // item, [2, 1, 0, 3], 3)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ZeroDivisionError):
            next(results)
