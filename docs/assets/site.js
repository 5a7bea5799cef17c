// Searching takes a leading dash for "without this word". Options of commands begin with dashes: search for their names.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (typeof message?.data === "string") message = { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") };
  return post.call(this, message, ...rest);
};
