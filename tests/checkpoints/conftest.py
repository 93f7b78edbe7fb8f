"""Tests write many small files: what they say does not depend on the disk, so they do not wait for
it. (One test looks whether the writer does.)"""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
