// The plain way with Socket.IO: an event with acknowledgement, broadcast to everybody else.

import { createServer } from "node:http";
import { Server } from "socket.io";

const http = createServer();
// Keepalive and compression are off, to its advantage.
const io = new Server(http, { transports: ["websocket"], pingInterval: 600_000, perMessageDeflate: false });

io.on("connection", (socket) => {
  socket.on("edit", (edit, acknowledge) => {
    acknowledge();
    socket.broadcast.emit("edit", edit);
  });
});
http.listen(0, "127.0.0.1", () => console.log(http.address().port));
