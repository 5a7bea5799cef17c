"""Everyday English words for the sentences of the mini corpus."""

from __future__ import annotations

_TEXT = """
able across after afternoon again against air almost alone along already always amber among animal answer apple april
arm around arrow artist autumn away baker ball banana bank barn basket beach bean bear beautiful because bed before
begin behind bell below beside better between bicycle big bird black blanket blue board boat body book border both
bottle bottom box branch bread break bridge bright bring broad broken brother brown brush bucket build building button
buy cabin cake call calm candle captain car careful carpet carry castle catch cellar center chair change cheese cherry
chicken child choose circle city clean clear clever climb clock close cloth cloud coat coffee cold collect color come
cool copper corner cotton country cover cow cross crowd cup curtain cut dance dark daughter day december deep desk
different dinner doctor dog door double down draw dream dress drink drive dry dust early earth east easy eat edge egg
eight eleven empty engine enough evening every eye face fall family far farmer fast father feather february feel fence
field fifteen find finger fire first fish five flag flat floor flower fly follow food foot forest forget forty forward
four fox fresh friday friend front fruit full garden gate gentle give glass goat gold good grain grass gray great
green ground group grow guest guitar hair half hammer hand happy harbor hard harvest hat head hear heart heavy help
here high hill hold hollow home honey horse hospital hotel hour house hundred hungry ice iron island jacket january
join journey july jump june keep kettle key kind king kitchen kitten knee know ladder lady lake lamp large late laugh
lazy leaf learn leather leave left lemon letter level library light like linen lion listen little long look lose loud
low lucky lunch machine make many map march market master meadow measure meet melon member metal middle milk mind
minute mirror monday money monkey month moon morning mother mountain mouse mouth move much music narrow near neck
needle never new next night nine noise noon north notice november number ocean october often old olive only open
orange other oven over page paint paper parcel park party past path peach pencil people pepper perhaps person piano
picture piece pillow pilot place plain plant plate play please pocket pond potato present pretty proud pull purple
push quarter queen question quick quiet rabbit rain raise reach read ready red remember rest return ribbon rice rich
ride right ring river road rocket roof room rope rose rough round run sail salt sand saturday save school season
second secret see seldom send september seven shadow shallow sharp sheep shelf shine ship shirt shoe short shoulder
show silent silver simple sing sister sit six sky sleep slow small smile smoke smooth snow soft soldier some song soon
south speak spoon spring square stable stand star station stay steam step stone stop storm story straight stranger
stream street strong sugar summer sun sunday supper sweet swim table tailor tall teacher tell ten tent thank thick
thin thing think thirteen thirty thousand three throw thursday ticket tiger time tired today together tomorrow tongue
top tower town travel tree tuesday turn twelve twenty two uncle under until up valley velvet very village visit voice
wagon wait walk wall warm wash watch water wave weather wednesday week well west wheat wheel white wide wild wind
window winter woman wonder wood wool word work world write yellow yesterday young
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
