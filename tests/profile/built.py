"""Profiles of small problems, counted on the machine once, and their sections as text."""

import copy
import functools

from numba_marlin.hardware import devices
from numba_marlin.heuristics import Problem, candidate
from numba_marlin.profile import build as profile
from numba_marlin.profile.pages import profile_page
from numba_marlin.profile.sources import on_machine
from numba_marlin.views import text

H200 = devices.device("H200")


@functools.cache
def counted(m=16, n=256, k=256, work=on_machine.WORK):
    problem = Problem(m, n, k)
    return on_machine.observe(problem, candidate(problem, H200, "tiled"), H200, work=work)


@functools.cache
def built(**shape):
    return profile.build(counted(**shape), H200)


def data(**shape):
    return copy.deepcopy(built(**shape))


def section(found, key):
    return text.render(profile_page.page(found).only((key,)), 100)
