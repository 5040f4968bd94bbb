"""benchmarks/audit_hosts.py: hosts are audited at every seed and counted."""

from __future__ import annotations

import json
import sys

from benchmarks import audit_hosts


def test_hosts_are_counted_over_seeds_and_written_down(tmp_path, monkeypatch, capsys):
    arguments = ["--hosts", "LSTM", "nn.TransformerEncoder", "--seeds", "2", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["audit_hosts", *arguments])
    audit_hosts.main()
    lstm, encoder = json.loads((tmp_path / "audit_hosts.json").read_text(encoding="utf-8"))["rows"]
    assert (lstm["parameters"], lstm["drawn"], lstm["reference"], lstm["problems"]) == (16, 16, 16, [])
    assert (encoder["parameters"], encoder["drawn"]) == (96, 48)  # half of them are zeros and ones
    assert len(encoder["problems"]) == 1
    assert lstm["contradicted"] == encoder["contradicted"] == 0
    assert "| all | 112 | 64 |" in capsys.readouterr().out
