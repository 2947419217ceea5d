// The texts of a page whose contrast with their background is too low.
() => {
  const parse = (text) => {
    const found = text.match(/rgba?\(([^)]*)\)/);
    if (found === null) return null;
    const [red, green, blue, alpha = 1] = found[1].split(/[ ,/]+/).map(Number);
    return alpha === 0 ? null : [red, green, blue];
  };
  const luminance = (color) => {
    const [red, green, blue] = color.map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const background = (element) => {
    for (let one = element; one !== null; one = one.parentElement) {
      const color = parse(getComputedStyle(one).backgroundColor);
      if (color !== null) return color;
    }
    return [255, 255, 255];
  };
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const found = [];
  const check = (text, color, behind) => {
    if (color !== null && behind !== null && contrast(color, behind) < 4.5) {
      found.push(`${text}: ${contrast(color, behind).toFixed(2)}`);
    }
  };
  for (const element of document.querySelectorAll("main *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim() !== "");
    if (!own || element.closest("svg, meter, option") !== null || element.getClientRects().length === 0) continue;
    check(element.textContent.trim().slice(0, 40), parse(getComputedStyle(element).color), background(element));
  }
  // In a picture, the text follows the box that it stands on.
  for (const text of document.querySelectorAll("svg text[text-anchor=middle]")) {
    let box = text.previousElementSibling;
    while (box !== null && box.tagName !== "rect") box = box.previousElementSibling;
    const fill = box === null ? null : parse(getComputedStyle(box).fill);
    check(text.textContent, parse(getComputedStyle(text).fill), fill);
  }
  return found;
}
