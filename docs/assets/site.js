// Searching takes a leading dash for "without this word". Here `--link-speakers` asks for the helps of commands with both words.
// The search takes every word as the beginning of another ("meetings" misses "meeting", "in" finds "install"), except with
// a weight. Here words are stemmed, and only the last one, which may not be complete yet, is also a beginning.
const post = Worker.prototype.postMessage;
const asOption = (option) => [...option.split(/-+/).filter(Boolean), "usage"].map((word) => `+text:${word}*`).join(" ");
const asWords = (query) => (/^[\p{L}\d\s]+$/u.test(query) ? query.trim().replace(/\S+/g, "$&^1") + query.replace(/^.*?(\S{3,})?$/s, " $1") : query);
Worker.prototype.postMessage = function (message, ...rest) {
  if (typeof message?.data === "string") message = { ...message, data: asWords(message.data.replace(/(?<!\S)-+\w[\w-]*/g, asOption)) };
  return post.call(this, message, ...rest);
};
