"""An engine's metrics endpoint, with the text of one that works."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

GOOD = """# HELP vllm:cache_config_info x
vllm:cache_config_info{block_size="784",enable_prefix_caching="True",mamba_cache_mode="align",\
prefix_cache_retention_interval="0",prefix_caching_hash_algo="sha256"} 1.0
vllm:hybrid_pages_lookups_total{engine="0"} 10
vllm:hybrid_pages_lookup_tokens_total{engine="0"} 100000
vllm:hybrid_pages_hit_tokens_total{engine="0",source="host"} 5.0e4
vllm:hybrid_pages_missing_state_tokens_total{engine="0"} 100
vllm:hybrid_pages_missing_states_total{engine="0",reason="evicted"} 1
vllm:hybrid_pages_stored_entries_total{engine="0",kind="pages"} 100
vllm:hybrid_pages_resident_bytes{engine="0",kind="pages"} 600
vllm:hybrid_pages_free_bytes{engine="0"} 400
vllm:hybrid_pages_ready_bytes{engine="0"} 1000
vllm:hybrid_pages_disk_quota_bytes{engine="0"} 1000
vllm:hybrid_pages_disk_used_bytes{engine="0",identity="this"} 500
vllm:hybrid_pages_disk_lasting{engine="0"} 1
vllm:hybrid_pages_disk_out{engine="0"} 0
vllm:request_prompt_tokens_bucket{le="500"} 1
vllm:request_prompt_tokens_bucket{le="1000"} 5
vllm:request_prompt_tokens_bucket{le="+Inf"} 10
"""


class Pages(BaseHTTPRequestHandler):
    text, version, missing, endless = "", "0.33.0", 0, False

    def do_GET(self) -> None:
        known = {"/metrics": self.text, "/version": json.dumps({"version": self.version})}
        body = known.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        if self.missing:
            self.send_header("Content-Length", str(len(body) + self.missing))
        self.end_headers()
        self.wfile.write(body)
        try:
            while self.endless:
                self.wfile.write(b"#\n")
                time.sleep(0.01)
        except OSError:
            pass  # nobody listens any more

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    """Serves a text as metrics."""

    class Mine(Pages):
        pass

    http = HTTPServer(("127.0.0.1", 0), Mine)
    Thread(target=http.serve_forever, daemon=True).start()

    def serve(text: str, version: str = "0.33.0", missing: int = 0, endless: bool = False) -> str:
        Mine.text, Mine.version, Mine.missing, Mine.endless = text, version, missing, endless
        return f"http://127.0.0.1:{http.server_port}"

    yield serve
    http.shutdown()
    http.server_close()
