// Returns the mistakes in the page that a program can find, its plots, and its background.
(() => {
    const problems = [];
    const name = (element) => (element.textContent || element.tagName).trim().replace(/\s+/g, " ").slice(0, 70);
    const problem = (what, element) => problems.push(`${what}: ${name(element)}`);
    const visible = (element) => {
        const box = element.getBoundingClientRect();
        return box.width > 0 && box.height > 0 && element.checkVisibility() && !element.closest(".hidden, .skip, .defs");
    };
    const printed = matchMedia("print").matches;
    const width = document.documentElement.clientWidth;

    // Nothing is wider than the page, except for the content of a box that scrolls. Paper has no
    // such boxes.
    if (document.documentElement.scrollWidth > width) problems.push("the page scrolls sideways");
    for (const element of document.body.querySelectorAll("*")) {
        const inside = element.parentElement.closest(".scroll");
        if (!visible(element) || (inside && !printed)) continue;
        const box = element.getBoundingClientRect();
        if (box.left < -1 || box.right > width + 1) problem("wider than the page", element);
    }
    for (const box of document.querySelectorAll(".scroll")) {
        if (box.tabIndex !== 0 || !box.getAttribute("aria-label")) problem("not for the keyboard", box);
    }

    // Plots: visible, described, with axes that have units, and labels that can be read.
    const plots = [];
    for (const svg of document.querySelectorAll("svg.plot")) {
        const box = svg.getBoundingClientRect();
        const title = svg.querySelector("title");
        if (visible(svg) && box.width >= 200 && box.height >= 60) plots.push(title.textContent);
        else problem("no visible size", svg);
        const said = document.getElementById(svg.getAttribute("aria-describedby"));
        if (svg.getAttribute("role") !== "img" || !title.textContent || !said?.textContent) problem("not described", svg);
        for (const axis of ["x", "y"]) {
            const label = svg.querySelector(`text.axis.${axis}`);
            if (!label) problem(`no label of the ${axis} axis`, svg);
            else if (!label.matches(".category") && !/\(.+\)$/.test(label.textContent)) problem("no unit", label);
        }
        if (![...svg.querySelectorAll("text.axis")].some((label) => /\(.+\)$/.test(label.textContent))) problem("no unit at all", svg);
        const labels = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
        for (const [text, at] of labels) {
            if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 2 || at.bottom > box.bottom + 2)
                problem("cut off", text);
            if (at.height < 8) problem("too small", text);
        }
        for (const [index, [one, a]] of labels.entries()) {
            for (const [other, b] of labels.slice(index + 1)) {
                const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                if (across > 1 && down > 3) problem(`over "${name(other)}"`, one);
            }
        }
        const table = svg.closest("figure")?.querySelector("details table, .scroll table");
        if (!table || table.querySelectorAll("tbody tr").length === 0) problem("no table of its values", svg);
    }

    // Colours (WCAG 2, 1.4.3 and 1.4.11).
    const channels = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
    const luminance = (colour) => {
        const [r, g, b] = channels(colour).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            const [, , , alpha = 1] = channels(colour);
            if (alpha === 1 && colour !== "transparent") return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const contrast = (one, other) => {
        const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
        return (light + 0.05) / (dark + 0.05);
    };
    for (const element of document.body.querySelectorAll("*")) {
        const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        const drawn = element.matches("svg.plot .path, svg.plot .mark, svg.plot .bar");
        if (!visible(element) || (!text && !drawn)) continue;
        const style = getComputedStyle(element);
        const colour = element.matches("svg text") ? style.fill : style.color;
        const found = contrast(colour, behind(element));
        if (found < (text ? 4.5 : 3)) problem(`contrast of only ${found.toFixed(1)} (${colour})`, element);
    }

    // Screen readers use landmarks, levels of headings, and links.
    for (const landmark of ["header", "nav", "main", "footer"]) {
        if (document.querySelectorAll(`body > ${landmark}`).length !== 1) problems.push(`not one ${landmark}`);
    }
    let level = 0;
    for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
        const next = Number(heading.tagName[1]);
        if (next > level + 1) problem("a level of headings is left out", heading);
        level = next;
    }
    const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
    if (new Set(ids).size !== ids.length) problems.push("an id is there twice");
    for (const link of document.querySelectorAll("a")) {
        if (!document.getElementById(link.getAttribute("href").slice(1))) problem("leads nowhere", link);
    }

    return { problems: problems.slice(0, 40), plots, background: getComputedStyle(document.body).backgroundColor };
})()
