// The plain way with `ws`: JSON in, an acknowledgement out, and the message to every observer.

import { WebSocketServer } from "ws";

const server = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });
const observers = new Set();

server.on("connection", (socket, request) => {
  if (request.url === "/observe") {
    observers.add(socket);
    socket.on("close", () => observers.delete(socket));
  }
  socket.on("message", (data) => {
    const message = data.toString();
    const edit = JSON.parse(message);
    socket.send(JSON.stringify({ type: "ack", sequence: edit.sequence }));
    for (const observer of observers) observer.send(message);
  });
});
server.on("listening", () => console.log(server.address().port));
