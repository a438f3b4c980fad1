from bench.paper_tables._runs import *


def runs(_):
    return iter(())


def table(known):
    raise KeyError


def switch_runs(_):
    return iter(())


def switches(known):
    raise KeyError
