"""The errors of the server, in OpenAI's form."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer with an error.

    Args:
        status: the status of HTTP.
        message: what is wrong, where, and the remedy.
        param: the field of the request that is wrong.
        code: a word for programs, such as "context_length_exceeded".
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    @property
    def content(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
