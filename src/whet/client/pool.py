"""Connections that are kept and used again; every failure to exchange becomes a typed word."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from whet.client.endpoint import Endpoint
from whet.client.wire import Connection, Exchange, KernelStamped, Transported


class ConnectionPool:
    """At most ``size`` sockets to one endpoint, opened on demand or beforehand by ``open``."""

    def __init__(self, endpoint: Endpoint, *, size: int, timeout_s: float) -> None:
        """``timeout_s`` bounds one exchange from its start to its last byte."""
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._tls = endpoint.tls_context()

    async def __aenter__(self) -> Self:
        """Nothing is opened yet."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every idle socket; those in use are closed by their cancelled exchanges."""
        while self._idle:
            self._idle.pop().close()

    @property
    def kernel_stamped(self) -> bool:
        """Whether its sockets are read with the kernel's own times."""
        return self._tls is None and KernelStamped.available

    async def open(self, count: int) -> None:
        """Have ``count`` sockets ready, so that no handshake falls into a timed window.

        A server that refuses is not an error here: the first exchange will say so.
        """
        while len(self._idle) < count:
            try:
                async with asyncio.timeout(self._timeout_s):
                    self._idle.append(await self._connect())
            except OSError:
                return  # TimeoutError is one too

    async def send(self, exchange: Exchange) -> None:
        """Fill ``exchange``; never raises for what the server or the network does."""
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._attempt(exchange)
            except TimeoutError:
                exchange.fail("timeout", f"no complete answer within {self._timeout_s:g} s")

    async def _attempt(self, exchange: Exchange) -> None:
        """Do one exchange. Retry on a new socket if an idle one was closed without an answer."""
        idle = self._take()
        if idle is not None:
            await self._on(idle, exchange)
            if exchange.error != "reset" or exchange.status is not None or exchange.parts:
                return
            exchange.retry()
        try:
            connection = await self._connect()
        except TimeoutError:
            raise
        except OSError as error:
            why = self._endpoint.why(error)
            exchange.fail("connect", f"no connection to {self._endpoint.url}: {why}")
            return
        await self._on(connection, exchange)

    async def _on(self, connection: Connection, exchange: Exchange) -> None:
        await connection.roundtrip(exchange)
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle():
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        host, port = self._endpoint.host, self._endpoint.port
        if self.kernel_stamped:
            return await KernelStamped.open(host, port)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Transported, host, port, ssl=self._tls)
        return connection
