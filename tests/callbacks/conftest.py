from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

TIME_LIMIT = 240  # seconds; a rank that waits for one that has failed would wait for half an hour


@pytest.fixture(scope="module")
def two_processes(request, tmp_path_factory):
    """Run the test's own file as a script in two processes; give what each rank has written to ``<rank>.json``."""
    folder = tmp_path_factory.mktemp("two_processes")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, request.path, folder],
            env={**common, "LOCAL_RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=TIME_LIMIT)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, output in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, output[-5000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
