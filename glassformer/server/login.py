"""How a browser shows the token: a page of one field, and a cookie that stands for the token afterwards.

The token can also stand after a # in the address, which a browser sends to nobody: /login#TOKEN.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import Field

from glassformer.server.answers import NotFound, NoToken
from glassformer.server.guard import Address, same
from glassformer.server.schema import Closed

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Glassformer</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<script src="/login.js" type="module"></script></head>
<body><main><h1>Glassformer</h1>
<p><label>Token <input id="token" type="password" autocomplete="current-password" autofocus></label>
<button id="enter" type="button">Enter</button></p><p id="told" role="status"></p></main></body></html>
"""
SCRIPT = """const field = document.getElementById('token')
async function enter() {
  const answer = await fetch('/login', { method: 'POST', headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ token: field.value }) })
  if (answer.ok) location.replace('/')
  else document.getElementById('told').textContent = (await answer.json()).error.message
}
document.getElementById('enter').addEventListener('click', enter)
field.addEventListener('keydown', (event) => { if (event.key === 'Enter') enter() })
function take() {
  if (location.hash.length < 2) return
  field.value = decodeURIComponent(location.hash.slice(1))
  history.replaceState(null, '', '/login')
  enter()
}
addEventListener('hashchange', take)
take()
"""


class Login(Closed):
    """POST /login: the token."""

    token: Annotated[str, Field(min_length=1, max_length=1000)]


def routes(address: Address) -> APIRouter:
    """The page, its script, and what takes the token; nothing where no token is asked for."""
    router = APIRouter(include_in_schema=False)

    @router.get("/login")
    async def shown() -> Response:
        _asked(address)
        return HTMLResponse(PAGE)

    @router.get("/login.js")
    async def script() -> Response:
        _asked(address)
        return Response(SCRIPT, media_type="text/javascript")

    @router.post("/login")
    async def enter(given: Login) -> Response:
        if not same(given.token, _asked(address)):
            raise NoToken("this is not the server's token")
        answer = JSONResponse({"status": "ok"})
        answer.set_cookie(address.cookie, address.session, httponly=True, samesite="strict", path="/")
        return answer

    return router


def _asked(address: Address) -> str:
    if address.token is None:
        raise NotFound("this server asks for no token")
    return address.token
