// Searching takes a leading dash for "without this word". Here `--link-speakers` asks for the helps of commands with both words.
const post = Worker.prototype.postMessage;
const asOption = (option) => [...option.split(/-+/).filter(Boolean), "usage"].map((word) => `+text:${word}*`).join(" ");
Worker.prototype.postMessage = function (message, ...rest) {
  if (typeof message?.data === "string") message = { ...message, data: message.data.replace(/(?<!\S)-+\w[\w-]*/g, asOption) };
  return post.call(this, message, ...rest);
};
