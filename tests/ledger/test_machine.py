from tests.ledger import machine


def test_random_takers_lose_nothing_and_do_nothing_twice():
    """Takes, settlements, retries, scores, leases, lost answers, deaths, saves and loads, as a model has them."""
    machine.run(120)
